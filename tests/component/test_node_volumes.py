"""Volumes and namespaces that reach beyond one container: host paths, claims, propagation, shared process ids."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, state

from virtfleet.kube.resource import CONFIG_MAPS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, SECRETS
from virtfleet.local.node import podworker

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start()
        yield made


def mounted(**how: Any) -> dict[str, Any]:
    return {"volumeMounts": [{"name": "v", "mountPath": "/v", **how}]}


async def claim(cluster: NodeCluster, path: Path, mode: str) -> list[dict[str, Any]]:
    """A bound claim for a volume at `path`, as a pod's volumes."""
    common = {"accessModes": ["ReadWriteOnce"], "volumeMode": mode, "storageClassName": "local"}
    await cluster.api.create(
        PERSISTENT_VOLUMES,
        {
            "metadata": {"name": "pv"},
            "spec": {
                **common,
                "capacity": {"storage": "1Mi"},
                "local": {"path": str(path)},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}]
                    }
                },
            },
        },
    )
    body = {
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {**common, "volumeName": "pv", "resources": {"requests": {"storage": "1Mi"}}},
    }
    await cluster.api.create(PERSISTENT_VOLUME_CLAIMS, body)
    await cluster.api.patch(
        PERSISTENT_VOLUME_CLAIMS, "claim", {"status": {"phase": "Bound"}}, "default", subresource="status"
    )
    return [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]


async def test_a_claim_is_a_directory_of_the_machine(cluster: NodeCluster) -> None:
    (cluster.directory / "pv").mkdir()
    volumes = await claim(cluster, cluster.directory / "pv", "Filesystem")
    await cluster.output("p", "echo kept > /v/file", volumes=volumes, container=mounted())
    await cluster.delete("p")
    assert (cluster.directory / "pv" / "file").read_text() == "kept\n"


async def test_a_claim_in_block_mode_is_a_device(cluster: NodeCluster) -> None:
    disk = cluster.directory / "disk.img"
    disk.write_bytes(b"block" + bytes((1 << 20) - 5))
    volumes = await claim(cluster, disk, "Block")
    devices = {"volumeDevices": [{"name": "v", "devicePath": "/dev/vol"}]}
    text = await cluster.output("p", "test -b /dev/vol && head -c 5 /dev/vol", volumes=volumes, container=devices)
    assert text == "block"
    await cluster.delete("p")


async def test_a_host_path_of_the_wrong_type_is_told_and_tried_again(cluster: NodeCluster) -> None:
    path = cluster.directory / "later"
    volumes = [{"name": "v", "hostPath": {"path": str(path), "type": "Directory"}}]
    await cluster.run("p", "cat /v/file", volumes=volumes, container=mounted())

    async def told() -> bool:
        messages = [e["message"] for e in await cluster.api.list(EVENTS, "default") if e["reason"] == "FailedMount"]
        return any("does not exist" in m and '"v"' in m for m in messages)

    await cluster.eventually(told)
    assert state(await cluster.pod("p"))["waiting"]["reason"] == "ContainerCreating"
    path.mkdir()
    (path / "file").write_text("there now")
    await cluster.phase("p", "Succeeded")
    assert cluster.log("p") == "there now"


async def test_each_node_has_its_own_kubelet_directory_and_mounts_made_there_reach_other_pods(
    cluster: NodeCluster,
) -> None:
    await cluster.start("n2", 2)
    volumes = [{"name": "v", "hostPath": {"path": "/var/run/kubevirt-private"}}]
    maker = "mkdir -p /v/m; mount -t tmpfs none /v/m; echo shared > /v/m/file; touch /tmp/done; exec sleep 1000"
    ready = {"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1}
    await cluster.run(
        "reader",
        "while ! test -e /v/m/file; do sleep 0.05; done; cat /v/m/file",
        volumes=volumes,
        container=mounted(mountPropagation="HostToContainer"),
    )
    await cluster.ready("reader")
    await cluster.run(
        "maker",
        maker,
        restartPolicy="Always",
        volumes=volumes,
        container={
            **mounted(mountPropagation="Bidirectional"),
            "securityContext": {"privileged": True},
            "readinessProbe": ready,
        },
    )
    await cluster.ready("maker")
    await cluster.phase("reader", "Succeeded")
    assert cluster.log("reader") == "shared"
    assert await cluster.output("other", "ls /v", node="n2", volumes=volumes, container=mounted()) == ""
    await cluster.delete("maker")


@pytest.mark.parametrize("told", [True, False], ids=["at once where the Pod changes", "else after a while"])
async def test_files_follow_their_objects_while_the_pod_runs(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(podworker, "_REFRESH", 3600.0 if told else 0.2)
    await cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "cm", "namespace": "default"}, "data": {"k": "old"}})
    await cluster.run(
        "p",
        "while ! grep -q new /v/k; do sleep 0.05; done;"
        f" while ! grep -q {2 if told else 1} /d/l; do sleep 0.05; done; echo seen",
        metadata={"labels": {"version": "1"}},
        volumes=[
            {"name": "v", "configMap": {"name": "cm"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        ],
        container={"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "d", "mountPath": "/d"}]},
    )
    await cluster.ready("p")
    await cluster.api.patch(CONFIG_MAPS, "cm", {"data": {"k": "new"}}, "default")
    if told:
        await cluster.api.patch(PODS, "p", {"metadata": {"labels": {"version": "2"}}}, "default")
    await cluster.phase("p", "Succeeded")
    assert cluster.log("p") == "seen"


async def test_a_service_accounts_token_is_renewed_while_the_pod_runs(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podworker, "_REFRESH", 0.2)
    monkeypatch.setattr("virtfleet.local.node.volumes._TOKEN_RENEWAL", 0.0)
    source = {"path": "token", "expirationSeconds": 600, "audience": "vault"}
    script = (
        'first=$(cat /v/token); while test "$first" = "$(cat /v/token)"; do sleep 0.05; done; echo $first; cat /v/token'
    )
    await cluster.run(
        "p",
        script,
        volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": source}]}}],
        container=mounted(),
    )
    await cluster.phase("p", "Succeeded")
    tokens = [jwt.decode(t, options={"verify_signature": False}) for t in cluster.log("p").split()]
    assert [(t["aud"], t["exp"] - t["iat"], t["sub"]) for t in tokens] == [
        (["vault"], 600, "system:serviceaccount:default:default")
    ] * 2


async def test_host_paths_are_checked_against_their_type(cluster: NodeCluster) -> None:
    (cluster.directory / "file").write_text("x")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(cluster.directory / "socket"))
    there = {"File": "file", "FileOrCreate": "made", "Socket": "socket", "CharDevice": "/dev/null"}
    names = {kind: kind.lower() for kind in there}
    await cluster.output(
        "p",
        "test -f /file && test -f /fileorcreate && test -S /socket && test -c /chardevice",
        volumes=[
            {"name": names[kind], "hostPath": {"path": str(cluster.directory / path), "type": kind}}
            for kind, path in there.items()
        ],
        container={"volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names.values()]},
    )
    listening.close()
    for kind, what in (("Directory", "a directory"), ("BlockDevice", "a block device")):
        place = {"path": str(cluster.directory / "file"), "type": kind}
        name = f"wrong-{kind.lower()}"
        await cluster.run(name, "true", volumes=[{"name": "v", "hostPath": place}], container=mounted())

        async def told(what: str = what) -> bool:
            return any(e["message"].endswith(f"/file is not {what}") for e in await cluster.api.list(EVENTS, "default"))

        await cluster.eventually(told)


async def test_a_part_of_a_volume_stays_inside_it_whatever_links_are_in_it(cluster: NodeCluster) -> None:
    planted = {
        "name": "plant",
        "image": "host",
        "command": ["sh", "-c", "ln -s / /v/out; mkdir -p /v/p-x; echo in > /v/p-x/f"],
    }
    looking = {
        "name": "c",
        "image": "host",
        "command": ["sh", "-c", "ls /out; cat /own/f"],
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [
            {"name": "v", "mountPath": "/out", "subPath": "out"},
            {"name": "v", "mountPath": "/own", "subPathExpr": "$(NAME)-x"},
        ],
    }
    await cluster.create(
        "p",
        restartPolicy="Never",
        initContainers=[{**planted, **mounted()}],
        containers=[looking],
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    await cluster.phase("p", "Succeeded", "Failed")
    assert cluster.log("p").split() == ["out", "p-x", "in"], "the link leads to the volume's own root"


async def test_a_part_of_a_volume_that_is_new_is_as_open_as_the_volume(cluster: NodeCluster) -> None:
    text = await cluster.output(
        "p",
        "touch /v/x && stat -c %u /v/x",
        securityContext={"runAsUser": 107, "runAsGroup": 107},
        volumes=[{"name": "v", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "own/part"}]},
    )
    assert text.split() == ["107"]


async def test_a_pods_group_owns_its_volumes_and_may_read_its_secrets(cluster: NodeCluster) -> None:
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"key": "hidden"}}
    await cluster.api.create(SECRETS, secret)
    text = await cluster.output(
        "p",
        "cat /s/key; echo; stat -Lc '%a %g' /s/key /v; touch /v/x && stat -c %g /v/x",
        securityContext={"runAsUser": 107, "runAsGroup": 107, "fsGroup": 2000},
        volumes=[{"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}}, {"name": "v", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "s", "mountPath": "/s"}, {"name": "v", "mountPath": "/v"}]},
    )
    assert text.splitlines() == ["hidden", "440 2000", "2777 2000", "2000"]


async def test_containers_of_one_pod_do_not_see_each_others_processes(cluster: NodeCluster) -> None:
    sleeper = {"name": "sleeper", "image": "host", "command": ["sleep", "4321"]}
    looker = {"name": "c", "image": "host", "command": ["sh", "-c", LOOK]}
    await cluster.create("apart", restartPolicy="Never", terminationGracePeriodSeconds=1, containers=[sleeper, looker])
    await cluster.until("apart", lambda p: state(p).get("terminated"))
    assert cluster.log("apart") == ""


LOOK = "for i in 1 2 3 4 5 6 7 8; do ps -eo args | grep -q '^sleep 4321' && echo seen && exit; sleep 0.1; done"


async def test_a_pod_past_its_deadline_or_over_its_storage_limit_fails_with_that_reason(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podworker, "_REFRESH", 0.2)
    await cluster.run("late", "exec sleep 1000", restartPolicy="Always", activeDeadlineSeconds=1)
    await cluster.run(
        "full",
        "head -c 3000000 /dev/zero > /v/x; exec sleep 1000",
        restartPolicy="Always",
        volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
        container=mounted(),
    )
    late, full = await cluster.phase("late", "Failed"), await cluster.phase("full", "Failed")
    assert late["status"]["reason"] == "DeadlineExceeded"
    assert full["status"]["reason"] == "Evicted" and 'exceeds the limit "1Mi"' in full["status"]["message"]
