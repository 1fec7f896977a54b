"""Pods on a node, as people see them: real containers of real images."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, restarts, state

from virtfleet.api import conditions
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONFIG_MAPS, ENDPOINT_SLICES, EVENTS, NODES, PODS, SECRETS, SERVICES, Obj
from virtfleet.local.node.containers import records
from virtfleet.local.node.podworker import PodWorker
from virtfleet.local.node.services import ServiceNetwork

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start()
        yield made


async def test_a_pod_runs_and_its_end_is_told_with_output_and_exit_code(cluster: NodeCluster) -> None:
    await cluster.run("p", "echo out; echo err >&2; echo last words > /dev/termination-log; exit 3")
    pod = await cluster.phase("p", "Failed", "Succeeded")
    ended = state(pod)["terminated"]
    assert (pod["status"]["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 3, "Error")
    assert ended["message"] == "last words\n"
    assert sorted(cluster.log("p").splitlines()) == ["err", "out"]
    reasons = {event["reason"] for event in await cluster.api.list(EVENTS, "default")}
    assert {"Pulled", "Created", "Started"} <= reasons
    await cluster.delete("p")
    assert not list(cluster.layout().logs.iterdir()), "logs go with the pod"
    assert not list(cluster.layout().containers.iterdir())


async def test_a_pods_end_is_told_also_where_the_api_server_was_away_just_then(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = PodWorker._write, []

    async def away(self: PodWorker, patch: Obj) -> None:
        if patch.get("status", {}).get("phase") == "Succeeded" and not refused:
            refused.append(patch)
            raise ApiError("ServiceUnavailable", "the API server is away")
        await write(self, patch)

    monkeypatch.setattr(PodWorker, "_write", away)
    await cluster.run("p", "exit 0")
    await cluster.phase("p", "Succeeded")
    assert refused


async def test_a_pod_sees_nothing_of_the_machine(cluster: NodeCluster) -> None:
    marker = cluster.directory / "secret-of-the-machine"
    marker.write_text("x")
    text = await cluster.output(
        "p",
        f"""
        echo shadow=$(cat /etc/shadow 2>&1)
        echo homes=$(ls -A /root /home /tmp)
        echo run=$(find /run -type f | grep -v /run/secrets/kubernetes.io/)
        echo data=$(cat {marker} 2>&1)
        echo processes=$(ls -d /proc/[0-9]* | wc -l)
        echo usr=$(touch /usr/x 2>&1)
        echo disks=$(ls /dev | grep -E 'vd|sd|nvme|kvm|loop')
        echo links=$(ip -br link | cut -d' ' -f1 | cut -d@ -f1)
        echo log=$(dmesg 2>&1 | head -1)
        echo environment=$(env | grep -E 'VIRTUAL_ENV|PYTEST|HOME=/home')
        """,
    )
    seen = dict(line.partition("=")[::2] for line in text.splitlines())
    assert "No such file" in seen["shadow"]
    assert seen["homes"] == "/home: /root: /tmp:"
    assert seen["run"] == seen["disks"] == seen["environment"] == ""
    assert "No such file" in seen["data"]
    assert int(seen["processes"]) < 8, "its own processes only"
    assert "Read-only file system" in seen["usr"]
    assert seen["links"] == "lo eth0"
    assert "Operation not permitted" in seen["log"]


async def test_environment_volumes_and_arguments_come_from_the_objects_they_name(cluster: NodeCluster) -> None:
    await cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "cm", "namespace": "default"}, "data": {"k": "v1"}})
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"password": "hidden"}}
    await cluster.api.create(SECRETS, secret)
    text = await cluster.output(
        "p",
        "echo $A $B $C $(cat /cm/k) $(cat /s/password) $(cat /down/labels) $(stat -fc %T /s) $(cat /sub); "
        "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; "
        "wc -c < /var/run/secrets/kubernetes.io/serviceaccount/token; echo x > /scratch/x && cat /scratch/x",
        metadata={"labels": {"app": "web"}},
        container={
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "C", "value": "$(B)-$(NONE)-$$(B)"},
            ],
            "volumeMounts": [
                {"name": "cm", "mountPath": "/cm"},
                {"name": "s", "mountPath": "/s"},
                {"name": "down", "mountPath": "/down"},
                {"name": "scratch", "mountPath": "/scratch"},
                {"name": "cm", "mountPath": "/sub", "subPath": "k"},
            ],
        },
        volumes=[
            {"name": "cm", "configMap": {"name": "cm"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {
                "name": "down",
                "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ],
    )
    first, second, third, *_ = text.splitlines()
    assert first == 'v1 p p-$(NONE)-$(B) v1 hidden app="web" tmpfs v1'
    assert second.startswith("default")
    assert text.endswith("x") and third


async def test_an_image_that_cannot_be_had_is_named_with_its_reason(cluster: NodeCluster) -> None:
    await cluster.create("gone", containers=[{"name": "c", "image": "localhost:1/none:1"}])
    pod = await cluster.until("gone", lambda p: "ImagePullBackOff" in str(state(p)))
    assert "connection refused" in state(pod)["waiting"]["message"]
    await cluster.create("never", containers=[{"name": "c", "image": "none:1", "imagePullPolicy": "Never"}])
    pod = await cluster.until("never", lambda p: "waiting" in state(p) and "Err" in state(p)["waiting"]["reason"])
    assert state(pod)["waiting"]["reason"] == "ErrImageNeverPull"
    for name in ("gone", "never"):
        await cluster.delete(name)


async def test_a_pod_gets_other_resources_while_it_runs_as_far_as_its_node_has_them(cluster: NodeCluster) -> None:
    async def allocatable() -> str:
        return str((await cluster.api.get(NODES, "n1")).get("status", {}).get("allocatable", {}).get("memory", ""))

    most = Quantity.parse(await cluster.eventually(allocatable))
    limit = {"memory": "64Mi", "cpu": "500m"}
    await cluster.run("p", "sleep 600", container={"resources": {"requests": limit, "limits": limit}})
    await cluster.ready("p")

    async def resize(**amounts: str) -> None:
        wanted = dict.fromkeys(("requests", "limits"), amounts)
        patch = {"spec": {"containers": [{"name": "c", "resources": wanted}]}}
        await cluster.api.patch(PODS, "p", patch, "default", how=Patch.STRATEGIC, subresource="resize")

    def has(pod: Obj, memory: str) -> bool:
        (status,) = pod["status"]["containerStatuses"]
        return bool(status["resources"]["limits"]["memory"] == memory) and restarts(pod) == 0

    def pending(pod: Obj) -> Obj:
        return conditions.find(pod["status"]["conditions"], "PodResizePending") or {}

    await resize(memory="96Mi")
    await cluster.until("p", lambda pod: has(pod, "96Mi"))
    (run,) = [c for _, c in records(cluster.layout().containers) if c]
    assert str(96 << 20) in _limits(run.cgroup)

    await resize(memory=str(most + Quantity.parse("1Mi")))
    await cluster.until("p", lambda pod: pending(pod).get("reason") == "Infeasible" and has(pod, "96Mi"))
    await cluster.stop()
    await cluster.start()  # another agent knows what the container has
    await cluster.until("p", lambda pod: pending(pod).get("reason") == "Infeasible" and has(pod, "96Mi"))
    with pytest.raises(ApiError, match="only cpu and memory resources are mutable"):
        await resize(**{"memory": "96Mi", "example.org/device": "1"})

    half = str(Quantity.of(most.value() // 2, BINARY))
    await resize(memory=half)
    await cluster.until("p", lambda pod: has(pod, half) and pending(pod).get("status") != "True")
    await cluster.run("q", "sleep 600", container={"resources": {"requests": {"memory": "1Mi"}}})
    await cluster.ready("q")
    more = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": str(most.value() * 3 // 4)}}}]}}
    await cluster.api.patch(PODS, "q", more, "default", how=Patch.STRATEGIC, subresource="resize")
    await cluster.until("q", lambda pod: pending(pod).get("reason") == "Deferred")
    await resize(memory="96Mi")  # and where another one lets go, it gets what it waits for
    await cluster.until("q", lambda pod: pending(pod).get("status") == "False")


def _limits(group: str) -> str:
    files = [Path(f"/sys/fs/cgroup{group}/memory.max"), Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes")]
    return " ".join(file.read_text() for file in files if file.exists())


async def test_a_container_over_its_memory_limit_is_oom_killed(cluster: NodeCluster) -> None:
    limits = {"resources": {"limits": {"memory": "24Mi"}}}
    await cluster.run("p", "tail /dev/zero", container=limits)
    pod = await cluster.phase("p", "Failed")
    assert state(pod)["terminated"]["reason"] == "OOMKilled"
    assert state(pod)["terminated"]["exitCode"] == 137


async def test_a_crashing_container_is_run_again_with_a_growing_pause(cluster: NodeCluster) -> None:
    await cluster.run("p", "echo run; exit 1", restartPolicy="Always")
    pod = await cluster.until("p", lambda p: "CrashLoopBackOff" in str(state(p)))
    assert restarts(pod) == 1, "the first restart comes at once, the second one waits"
    assert "back-off 10s" in state(pod)["waiting"]["message"]
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert cluster.log("p", attempt=0) == cluster.log("p", attempt=1) == "run"


async def test_init_containers_run_in_order(cluster: NodeCluster) -> None:
    def script(name: str, text: str) -> dict[str, object]:
        mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
        return {"name": name, "image": "host", "command": ["sh", "-c", text], **mount}

    await cluster.create(
        "p",
        restartPolicy="Never",
        terminationGracePeriodSeconds=2,
        volumes=[{"name": "d", "emptyDir": {}}],
        initContainers=[
            script("first", "echo first >> /d/order"),
            script("second", "echo second >> /d/order"),
        ],
        containers=[script("c", "cat /d/order")],
    )
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert pod["status"]["phase"] == "Succeeded"
    assert cluster.log("p").split() == ["first", "second"]


async def test_a_sidecar_runs_beside_the_others_and_is_ended_after_them(cluster: NodeCluster) -> None:
    def script(name: str, text: str, **more: object) -> dict[str, object]:
        mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
        return {"name": name, "image": "host", "command": ["sh", "-c", text], **mount, **more}

    wait = "while [ ! -e /d/asked ]; do sleep 0.05; done; echo heard > /d/answer; trap 'exit 0' TERM; sleep 1000 & wait"
    ask = "touch /d/asked; while [ ! -e /d/answer ]; do sleep 0.05; done; cat /d/answer"
    await cluster.create(
        "p",
        restartPolicy="Never",
        terminationGracePeriodSeconds=5,
        volumes=[{"name": "d", "emptyDir": {}}],
        initContainers=[script("beside", wait, restartPolicy="Always")],
        containers=[script("c", ask)],
    )
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert (pod["status"]["phase"], cluster.log("p").split()) == ("Succeeded", ["heard"])
    [beside] = pod["status"]["initContainerStatuses"]
    assert beside["state"]["terminated"]["exitCode"] == 0


async def test_probes_gate_readiness_and_restart_what_is_not_alive(cluster: NodeCluster) -> None:
    await cluster.run(
        "p",
        "echo $((n = $(cat /d/n || echo 0) + 1)) > /d/n; sleep 0.2; touch /tmp/ready; exec sleep 1000",
        restartPolicy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
        container={
            "volumeMounts": [{"name": "d", "mountPath": "/d"}],
            "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1},
            "livenessProbe": {
                "exec": {"command": ["sh", "-c", "test $(cat /d/n) -gt 1"]},
                "periodSeconds": 1,
                "failureThreshold": 2,
            },
        },
    )
    await cluster.ready("p")
    pod = await cluster.until("p", lambda p: restarts(p) == 1 and state(p).get("running"))
    assert pod["status"]["phase"] == "Running"
    messages = [event["message"] for event in await cluster.api.list(EVENTS, "default")]
    assert any("failed liveness probe, will be restarted" in message for message in messages)
    await cluster.ready("p")


async def test_a_deleted_pod_ends_in_grace(cluster: NodeCluster) -> None:
    shared = cluster.directory / "shared"
    await cluster.run(
        "p",
        "trap 'echo term >> /s/order; exit 0' TERM; while :; do sleep 0.05; done",
        restartPolicy="Always",
        volumes=[{"name": "s", "hostPath": {"path": str(shared), "type": "DirectoryOrCreate"}}],
        container={
            "volumeMounts": [{"name": "s", "mountPath": "/s"}],
        },
    )
    await cluster.ready("p")
    await cluster.delete("p")
    assert (shared / "order").read_text().split() == ["term"]


async def test_a_pod_removed_by_force_gets_no_more_grace(cluster: NodeCluster) -> None:
    await cluster.run("p", "trap '' TERM; while :; do sleep 0.05; done", terminationGracePeriodSeconds=1000)
    await cluster.ready("p")
    await cluster.api.delete(PODS, "p", "default")
    messages: set[str] = set()

    async def stopping() -> bool:
        messages.update(event["message"] for event in await cluster.api.list(EVENTS, "default"))
        return "Stopping container c" in messages

    await cluster.eventually(stopping)
    await cluster.api.delete(PODS, "p", "default", grace=0)
    await cluster.eventually(lambda: _settled(cluster))


async def _settled(cluster: NodeCluster) -> bool:
    return not cluster.agents["n1"].workers and not any(cluster.layout().containers.iterdir())


async def test_users_capabilities_and_seccomp_are_what_the_spec_says(cluster: NodeCluster) -> None:
    text = await cluster.output(
        "p",
        "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; touch /x 2>&1; unshare -n true 2>&1; "
        "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; stat -c %g /d",
        securityContext={
            "runAsUser": 107,
            "runAsGroup": 107,
            "fsGroup": 2000,
            "supplementalGroups": [3000],
            "seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "67"}],
        },
        volumes=[{"name": "d", "emptyDir": {}}],
        container={
            "volumeMounts": [{"name": "d", "mountPath": "/d"}],
            "securityContext": {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        },
    )
    lines = text.splitlines()
    assert lines[:2] == ["107", "107"]
    assert set(lines[2].split()) == {"107", "2000", "3000"}
    assert lines[3].split()[1] == "1"
    assert "Read-only file system" in lines[4]
    assert "Operation not permitted" in lines[5]
    assert lines[6:] == ["67", "2000"]


async def test_pods_of_two_nodes_reach_each_other_directly_and_through_a_service(cluster: NodeCluster) -> None:
    await cluster.start("n2", 2)
    serve = "exec python3 -m http.server 8080 --directory /etc --bind 0.0.0.0"
    probe = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    await cluster.run("server", serve, restartPolicy="Always", container=probe)
    pod = await cluster.ready("server")
    address = pod["status"]["podIP"]
    text = await cluster.output(
        "client",
        f"python3 -c \"import urllib.request as u; print(u.urlopen('http://{address}:8080/hostname').read().decode())\"",
        node="n2",
    )
    assert text.strip() == "server"

    service = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}}
    cluster_ip = (await cluster.api.create(SERVICES, service))["spec"]["clusterIP"]
    following = asyncio.create_task(ServiceNetwork(cluster.api, cluster.network).run())
    slices = {
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": [{"addresses": [address]}],
    }
    await cluster.api.create(ENDPOINT_SLICES, slices)
    fetch = f"import urllib.request as u; print(u.urlopen('http://{cluster_ip}/hostname', timeout=3).read().decode())"
    retry = f'until python3 -c "{fetch}" 2>/dev/null; do sleep 0.1; done'
    assert (await cluster.output("by-service", retry, node="n2")).strip() == "server"
    assert (await cluster.output("itself", f"sleep 0.1; {retry}")).strip() == "server"
    following.cancel()
    nodes = {n["metadata"]["name"]: n["spec"]["podCIDR"] for n in await cluster.api.list(NODES)}
    assert nodes == {"n1": "10.244.1.0/24", "n2": "10.244.2.0/24"}


async def test_a_pod_has_the_machines_network_and_processes_only_when_it_says_so(cluster: NodeCluster) -> None:
    text = await cluster.output(
        "p",
        f"ip -br link | grep -c {cluster.network.bridge}; test -d /proc/{os.getpid()} && hostname; ls /dev/null",
        hostNetwork=True,
        hostPID=True,
        hostIPC=True,
        container={"securityContext": {"privileged": True}, "tty": True},
    )
    lines = text.replace("\r", "").splitlines()
    assert lines[0] == "1" and "/dev/null" in lines
    pod = await cluster.pod("p")
    assert pod["status"]["podIP"] == pod["status"]["hostIP"] == "10.244.1.1"


async def test_a_pod_that_asks_for_what_this_node_cannot_do_fails_and_says_so(cluster: NodeCluster) -> None:
    await cluster.run("p", "true", container={"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}})
    pod = await cluster.phase("p", "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "spec.containers[0].lifecycle" in pod["status"]["message"]
