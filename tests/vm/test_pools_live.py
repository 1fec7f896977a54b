"""Pools on a real cluster: the story of nodes A, B and C, and handlers that change hands while guests run on.

The tests follow one another and share two guests: one that asks for a MegaSlop-9000, and an ordinary one.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import docblocks
from cluster.clusters import BIN, VIRTFLEET, Cluster, Kubectl
from cluster.manifests import IMAGE
from terminal import Terminal
from virtfleet import __version__
from virtfleet.api import names
from virtfleet.local import directory
from virtfleet.pools.model import owner, pools_of
from vm.handlerwatch import HandlerWatch, is_ready
from vm.reader import environment
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 240.0
LONGEST_GAP = 120.0  # seconds that a node may be without a handler on two busy cores; about five where there is room
DEVICE = "superduper.io/MegaSlop_9000"
GATES = ["VirtHandlerPools", "AdditionalVirtHandlers", "HostDevices"]
GUESTS = ("slopped", "ordinary")
NOWHERE = "localhost:1"  # a registry that refuses at once, where a name that nobody has may take a resolver 20 s
NAMESPACE = "pools"

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]


def pool(name: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "virtLauncherImage": "virtfleet/virt-launcher:canary",
        "nodeSelector": labels,
        "selector": {"deviceNames": [f"superduper.io/{name}"]},
        **more,
    }


MEGASLOP = pool(
    "megaslop",
    {"superduper.io/megaslop": "true"},
    virtLauncherImage="virtfleet/virt-launcher:megaslop",
    virtHandlerImage="virtfleet/virt-handler:megaslop",
    selector={"deviceNames": [DEVICE]},
    exclusive=True,
)


class Fleet:
    """The cluster in the hands of its administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ordinary, self.canary, self.special = self.nodes = cluster.nodes[:3]
        self.admin, self.user = Kubectl(cluster, "kubevirt"), Kubectl(cluster, NAMESPACE)

    def virtfleet(self, *args: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        done = subprocess.run([VIRTFLEET, *args], capture_output=True, text=True, timeout=400, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kubevirt(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.json("get", "kubevirt", "kubevirt")
        return found

    def configure(self, *pools: dict[str, Any], gates: list[str] = GATES, **spec: Any) -> None:
        configuration = {"developerConfiguration": {"featureGates": gates}}
        spec = {"virtHandlerPools": list(pools), "configuration": configuration, **spec}
        self.admin("patch", "kubevirt", "kubevirt", "--type=merge", "-p", json.dumps({"spec": spec}))

    def label(self, node: str, **labels: str | None) -> None:
        told = [f"{key}={value}" if value else f"{key}-" for key, value in labels.items()]
        self.admin("label", "node", node, "--overwrite", *told)

    def handlers(self) -> dict[str, dict[str, Any]]:
        """node -> its Ready handler"""
        pods = self.admin.json("get", "pods", "-l", "kubevirt.io=virt-handler")["items"]
        return {p["spec"]["nodeName"]: p for p in pods if is_ready(p)}

    def owners(self) -> dict[str, str]:
        """node -> DaemonSet of its Ready handler"""
        return {node: pod["metadata"]["ownerReferences"][0]["name"] for node, pod in self.handlers().items()}

    def expected_owners(self) -> dict[str, str]:
        pools = pools_of(self.kubevirt())
        nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in self.admin.json("get", "nodes")["items"]}
        return {n: found.daemon_set if (found := owner(pools, of)) else "virt-handler" for n, of in nodes.items()}

    def settled(self) -> dict[str, Any]:
        """The KubeVirt object, when everything is as it says."""

        def check() -> dict[str, Any]:
            kubevirt = self.kubevirt()
            status = kubevirt["status"]
            told = {c["type"]: c["status"] for c in status["conditions"]}
            assert status["observedGeneration"] == kubevirt["metadata"]["generation"]
            assert (told["Available"], told["Progressing"], told["Degraded"]) == ("True", "False", "False"), status
            assert self.owners() == self.expected_owners()
            return kubevirt

        return eventually(check, PATIENCE)

    def pod(self, vmi: str) -> dict[str, Any]:
        (pod,) = self.user.json("get", "pods", "-l", f"kubevirt.io/domain={vmi}")["items"]
        launcher: dict[str, Any] = pod
        return launcher

    def qemu(self, vmi: str) -> tuple[str, str]:
        """A guest's Pod, and process id and start time of QEMU in it: the same as long as the guest runs on."""
        pod = self.pod(vmi)["metadata"]
        this = f"[g]uest={NAMESPACE}_{vmi},"  # which does not find itself
        look = f"cd /proc; for p in [0-9]*; do grep -q '{this}' $p/cmdline 2>/dev/null && cat $p/stat; done; true"
        numbers = self.user("exec", pod["name"], "--", "/bin/sh", "-c", look).split()
        return pod["uid"], f"{numbers[0]} since {numbers[21]}"

    def pools_report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.virtfleet("pools", "-o", "json"))
        return found


@pytest.fixture(scope="module")
def live(fleet: Cluster) -> Iterator[Fleet]:
    """The cluster of the examples with the story's pool, which gets back what it had."""
    live = Fleet(fleet)
    before = live.kubevirt()["spec"]
    live.admin("create", "namespace", NAMESPACE)
    try:
        live.configure(MEGASLOP)
        live.settled()
        yield live
    finally:
        live.admin("delete", "namespace", NAMESPACE, "--timeout=80s")
        live.configure(*before["virtHandlerPools"], configuration=before["configuration"], additionalVirtHandlers=None)
        live.settled()


@pytest.fixture(scope="module")
def guests(live: Fleet) -> dict[str, tuple[str, str]]:
    """Both guests, booted: name -> its QEMU. Their owner says nothing of pools."""
    for name in GUESTS:
        vmi = yaml.safe_load((EXAMPLES / "vmi.yaml").read_text())
        vmi["metadata"] = {"name": name}
        if name == "slopped":
            vmi["spec"]["domain"]["devices"]["hostDevices"] = [{"name": "slop", "deviceName": DEVICE}]
        live.user("create", "-f", "-", stdin=json.dumps(vmi))
    for name in GUESTS:
        connected = ("wait", f"vmi/{name}", "--for=condition=AgentConnected", "--timeout=60s")
        eventually(lambda connected=connected: live.user.run(*connected).returncode == 0, PATIENCE)
    return {name: live.qemu(name) for name in GUESTS}


def run_on(live: Fleet, guests: dict[str, tuple[str, str]]) -> bool:
    return {name: live.qemu(name) for name in GUESTS} == guests


def test_a_vm_with_the_device_boots_on_node_c_with_the_pools_image_and_an_ordinary_one_elsewhere(
    live: Fleet, guests: dict[str, tuple[str, str]]
) -> None:
    pods = {name: live.pod(name) for name in GUESTS}
    images = {name: {c["image"] for c in _containers(pod)} for name, pod in pods.items()}
    assert pods["slopped"]["spec"]["nodeName"] == live.special
    assert "virtfleet/virt-launcher:megaslop" in images["slopped"]
    assert f"virtfleet/virt-launcher:{__version__}" not in images["slopped"]
    assert pods["ordinary"]["spec"]["nodeName"] in (live.ordinary, live.canary)
    assert f"virtfleet/virt-launcher:{__version__}" in images["ordinary"]
    [told] = live.pools_report()["pools"][:1]
    assert (told["name"], told["nodes"], told["vmis"], told["outdatedVMIs"]) == ("megaslop", [live.special], 1, 0)


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.local_home("a command of the local home")
def test_up_once_more_changes_nothing(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    def workloads() -> dict[str, str]:
        found = live.admin.json("get", "kubevirts,deployments,daemonsets,pods")["items"]
        return {f"{obj['kind']}/{obj['metadata']['name']}": obj["metadata"]["uid"] for obj in found}

    live.settled()
    before = workloads()
    running = json.loads(live.cluster.virtfleet("status", "-o", "json").stdout)["processes"]
    facts = json.loads(live.cluster.virtfleet("up", "-o", "json").stdout)
    assert facts["ready"] and facts["kubevirt"]["version"] == __version__
    assert {p["name"]: p["pid"] for p in facts["processes"]} == {p["name"]: p["pid"] for p in running}
    assert workloads() == before


def test_explain_asks_the_cluster(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    found = json.loads(live.virtfleet("explain", "slopped", "-n", NAMESPACE, "-o", "json"))
    assert (found["pool"], found["image"]) == ("megaslop", "virtfleet/virt-launcher:megaslop")
    assert [node["name"] for node in found["nodes"] if node["fits"]] == [live.special]
    assert next(n["handler"] for n in found["nodes"] if n["name"] == live.special) == "virt-handler-megaslop"


def test_a_pool_with_running_vms_is_not_removed_by_mistake(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    refusal = live.admin.fails(
        "patch", "kubevirt", "kubevirt", "--type=merge", "-p", '{"spec": {"virtHandlerPools": []}}'
    )
    assert "cannot remove pool megaslop: 1 VMIs belong to it (pools/slopped)" in refusal


def test_an_installation_at_rest_is_not_written_to(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    live.settled()
    leader = live.admin.json("get", "lease", "virt-operator")["spec"]["holderIdentity"]
    ask = (
        "import ssl, urllib.request as u; where = 'https://127.0.0.1:8443/metrics'\n"
        "print(u.urlopen(where, context=ssl._create_unverified_context(), timeout=10).read().decode())"
    )

    def metric(name: str) -> float:
        page = live.admin("exec", leader, "--", "/usr/bin/python3", "-c", ask)
        [value] = re.findall(rf"^{re.escape(name)} (\S+)", page, re.MULTILINE)
        return float(value)

    def reconciles() -> float:
        return metric('kubevirt_workqueue_work_duration_seconds_count{name="kubevirt"}')

    def versions() -> dict[str, str]:
        kinds = "deployments,daemonsets,services,secrets,configmaps,roles,rolebindings,serviceaccounts,pdb"
        wide = "clusterroles,clusterrolebindings,crd,apiservices,validatingwebhookconfigurations"
        listed = [
            *live.admin.json("get", kinds)["items"],
            *live.admin.json("get", wide, "-l", "app.kubernetes.io/managed-by=virt-operator")["items"],
        ]
        return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in listed}

    assert metric("kubevirt_virt_operator_leading_status") == 1
    before, counted = versions(), reconciles()
    live.admin("annotate", "kubevirt", "kubevirt", "--overwrite", f"look=again-{counted}")
    told = live.kubevirt()["metadata"]["resourceVersion"]
    eventually(lambda: reconciles() > counted)
    assert versions() == before
    assert live.kubevirt()["metadata"]["resourceVersion"] == told


@pytest.mark.thorough("each change that it makes is made by others as well")
def test_pools_and_labels_change_at_random_while_guests_run_on(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    dice = random.Random(11)
    others = [
        pool("p", {"x": "1"}),
        pool("q", {"x": "1", "y": "1"}, virtHandlerImage="virtfleet/virt-handler:canary"),
        pool("r", {"y": "1"}),
    ]
    moved: set[str] = set()
    with HandlerWatch(live.cluster.kubeconfig) as watch:
        for _ in range(2):
            pools = [MEGASLOP, *dice.sample(others, dice.randint(1, 3))]
            dice.shuffle(pools)
            live.configure(*pools)
            for node in dice.sample(live.nodes, 2):
                live.label(node, x=dice.choice(["1", None]), y=dice.choice(["1", None]))
            live.label(live.special, **{"superduper.io/megaslop": dice.choice(["true", None])})
            live.settled()
            moved |= set(live.owners().values())
            assert run_on(live, guests)
    sys.stderr.write(f"{watch.handovers} handlers came; longest times without one: {watch.gaps}\n")
    assert len(moved) >= 3, "nodes changed hands"
    assert not watch.doubles
    assert max(watch.gaps.values()) < LONGEST_GAP
    for node in live.nodes:
        live.label(node, x=None, y=None)


def test_a_handler_that_took_over_looks_after_the_guests_that_it_found(
    live: Fleet, guests: dict[str, tuple[str, str]]
) -> None:
    live.label(live.special, **{"superduper.io/megaslop": "true"})
    live.configure(MEGASLOP)
    live.settled()
    for node, pod in live.handlers().items():
        name = pod["metadata"]["name"]
        lock = live.admin("exec", name, "--", "/bin/cat", "/var/run/kubevirt-private/handler.lock")
        assert name in lock, f"who is Ready holds the lock of {node}"
    for name in GUESTS:
        live.virtfleet("pause", name, "-n", NAMESPACE)
        live.user("wait", f"vmi/{name}", "--for=condition=Paused", "--timeout=60s")
        live.virtfleet("unpause", name, "-n", NAMESPACE)
        eventually(
            lambda name=name: (
                "Paused" not in {c["type"] for c in live.user.json("get", "vmi", name)["status"]["conditions"]}
            )
        )
    assert run_on(live, guests)


def test_switching_the_gate_off_takes_pools_away_and_no_vm(
    live: Fleet, guests: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    live.configure(MEGASLOP, gates=["HostDevices"])
    kubevirt = live.settled()
    [resting] = [c for c in kubevirt["status"]["conditions"] if c["type"] == "PoolsResting"]
    assert "1 listed pools rest while the feature gate VirtHandlerPools is off" in resting["message"]
    assert [ds["metadata"]["name"] for ds in live.admin.json("get", "daemonsets")["items"]] == ["virt-handler"]
    assert run_on(live, guests)
    live.configure(MEGASLOP)
    live.settled()
    # Who serves the node now has waited for who did before.
    names = {"virt-handler-megaslop-8x4qm": live.handlers()[live.special]["metadata"]["name"]}
    docblocks.run(
        docblocks.shown(__file__, "kubectl -n kubevirt logs"), tmp_path, environment(live.cluster, tmp_path), names
    )
    assert run_on(live, guests)


def consoles_answer(live: Fleet) -> bool:
    """Somebody types in each guest and reads its answer."""
    environment = {**os.environ, "KUBECONFIG": str(live.cluster.kubeconfig)}
    for name in GUESTS:
        terminal = Terminal((VIRTFLEET, "console", name, "-n", NAMESPACE), environment)
        try:
            terminal.says("onnected to")
            terminal.says("guest# ", nudge="\r")
        finally:
            terminal.close()
    return True


def stopped(live: Fleet, reason: str, *parts: str) -> dict[str, Any]:
    """The KubeVirt object, when the operator has stopped for that reason."""

    def check() -> dict[str, Any]:
        kubevirt = live.kubevirt()
        status = kubevirt["status"]
        assert status["observedGeneration"] == kubevirt["metadata"]["generation"]
        told = {c["type"]: (c["status"], c["reason"], c["message"]) for c in status["conditions"]}
        assert told["Degraded"][:2] == ("True", reason), told
        assert all(part in told["Degraded"][2] for part in parts), told["Degraded"]
        # Every node has its old handler, and so it is said.
        assert (told["Available"][0], told["Progressing"][0]) == ("True", "False"), told
        return kubevirt

    return eventually(check, PATIENCE)


@pytest.mark.thorough("it waits for time limits")
def test_images_that_cannot_be_pulled_cost_no_vm_its_console(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    """A registry without images for all; then a pool over a node with a VM, by its definition and by a label."""
    live.settled()
    before = {node: pod["metadata"]["uid"] for node, pod in live.handlers().items()}
    node = live.user.json("get", "vmi", "ordinary")["status"]["nodeName"]
    image = f"{NOWHERE}/virt-launcher:none"
    broken = pool("broken", {"broken": "yes"}, virtLauncherImage=image)

    def unharmed() -> bool:
        assert {node: pod["metadata"]["uid"] for node, pod in live.handlers().items()} == before
        return consoles_answer(live) and run_on(live, guests)

    live.configure(MEGASLOP, imageRegistry=NOWHERE)
    stopped(live, "ControlPlaneFailed", "no handler is touched", f"{NOWHERE}/")
    assert unharmed()
    assert live.admin("get", "kubevirt").splitlines()[1].split()[-1] == "Degraded"
    live.configure(MEGASLOP, imageRegistry=None)
    live.settled()
    assert unharmed()

    live.label(node, broken="yes")
    live.configure(MEGASLOP, broken)
    stopped(live, "ImageUnproven", f"virt-handler-broken does not work on {node}", image)
    assert unharmed()
    live.label(node, broken=None)
    live.settled()
    assert live.admin("get", "kubevirt").splitlines()[1].split()[-1] == "Healthy"
    live.label(node, broken="yes")
    stopped(live, "ImageUnproven", f"virt-handler-broken does not work on {node}", image)
    assert unharmed()
    # The remedy goes on by itself, and only that node gets another handler.
    with HandlerWatch(live.cluster.kubeconfig) as watch:
        live.configure(MEGASLOP, pool("broken", {"broken": "yes"}))
        live.settled()
    sys.stderr.write(f"without a handler: {watch.gaps}\n")
    assert live.owners()[node] == "virt-handler-broken" and not watch.doubles
    assert {n for n, pod in live.handlers().items() if pod["metadata"]["uid"] != before[n]} == {node}
    assert not live.admin.json("get", "pods", "-l", "kubevirt.io=virt-handler-proof")["items"]
    live.label(node, broken=None)
    live.configure(MEGASLOP)
    live.settled()
    assert consoles_answer(live) and run_on(live, guests)


@pytest.fixture
def unlabelled(live: Fleet) -> Iterator[None]:
    """Nodes without the labels of a test, however it ends: the next one would stumble over them."""
    yield
    for node in live.nodes:
        live.label(node, handlers=None, broken=None)


@pytest.mark.usefixtures("unlabelled")
def test_what_is_wrong_with_pools_is_listed(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    """A pool whose image nobody has, a node without a handler, a node with two, and a VM on an older image."""
    place = {"nodePlacement": {"nodeSelector": {"handlers": "yes"}}}
    served = live.user.json("get", "vmi", "ordinary")["status"]["nodeName"]
    (free,) = {live.ordinary, live.canary} - {served}
    for node in (live.special, served):
        live.label(node, handlers="yes")
    broken = pool("broken", {"broken": "yes"}, virtHandlerImage=f"{NOWHERE}/virt-handler:none")
    older = {**MEGASLOP, "virtLauncherImage": "virtfleet/virt-launcher:canary"}
    live.configure(older, broken, workloads=place)
    second = {
        "metadata": {"name": "second", "labels": {"kubevirt.io": "virt-handler"}, "ownerReferences": [_owner(live)]},
        "spec": {"nodeName": served, "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "1000"]}]},
    }
    live.admin.apply({"apiVersion": "v1", "kind": "Pod", **second})

    def problems(*wanted: str) -> bool:
        found = live.pools_report()["problems"]
        assert all(any(text in problem for problem in found) for text in wanted), found
        return True

    eventually(lambda: problems(f"node {free} has no handler", f"node {served} has 2 handlers", "second"), PATIENCE)
    reported = {p["name"]: p for p in live.pools_report()["pools"]}
    assert reported["megaslop"]["outdatedVMIs"] == 1
    live.admin("delete", "pod", "second", "--now")
    live.label(free, handlers="yes")
    eventually(lambda: not any("has no handler" in problem for problem in live.pools_report()["problems"]), PATIENCE)
    eventually(lambda: live.admin.json("get", "node", free)["metadata"]["labels"].get(names.SERVED_BY), PATIENCE)
    live.label(free, broken="yes")
    # Nobody has the pool's image, so the node is the primary handler's until somebody does.
    eventually(lambda: problems("virt-handler-broken does not work on", f"{NOWHERE}/virt-handler:none"), PATIENCE)
    assert "\n! the roll-out is stopped: virt-handler-broken does not work on" in live.virtfleet("pools")
    assert f"{NOWHERE}/virt-handler:none" in live.virtfleet("pools", "-o", "wide")
    eventually(lambda: "ImageUnproven" in {c["reason"] for c in live.kubevirt()["status"]["conditions"]}, PATIENCE)
    live.configure(MEGASLOP, workloads=None)
    for node in live.nodes:
        live.label(node, handlers=None, broken=None)
    live.settled()
    assert run_on(live, guests)


def _owner(live: Fleet) -> dict[str, Any]:
    """So that the DaemonSet does not take the Pod for one of its own."""
    uid = live.kubevirt()["metadata"]["uid"]
    return {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "name": "kubevirt", "uid": uid, "controller": True}


# As the guide to additional virt-handlers has them.
GUIDE_POOLS = [
    {
        "name": f"{kind}-pool",
        "virtLauncherImage": f"registry.example.com/kubevirt/virt-launcher:v1.0.0-{kind}",
        "nodeSelector": {"accelerator": accelerator},
    }
    for kind, accelerator in (("gpu", "nvidia-gpu"), ("fpga", "intel-fpga"))
]
GUIDE_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: gpu-vm
spec:
  nodeSelector:
    accelerator: nvidia-gpu
  domain:
    resources:
      requests:
        memory: 4Gi
    devices:
      gpus:
        - name: gpu1
          deviceName: nvidia.com/GPU
      disks:
        - name: containerdisk
          disk:
            bus: virtio
  volumes:
    - name: containerdisk
      containerDisk:
        image: registry.example.com/my-gpu-vm:latest
"""
GUIDE_COMMANDS = """
kubectl get kubevirt kubevirt -n kubevirt -o jsonpath='{.spec.configuration.developerConfiguration.featureGates}'
kubectl logs -n kubevirt -l kubevirt.io=virt-operator
kubectl get vmi <name> -o jsonpath='{.spec.nodeSelector}'
kubectl get kubevirt kubevirt -n kubevirt -o jsonpath='{.spec.additionalVirtHandlers}'
kubectl get pod -l kubevirt.io/domain=<vmi-name> -o jsonpath='{.items[0].spec.containers[?(@.name=="compute")].image}'
"""


def test_the_troubleshooting_commands_of_the_guide_answer(
    live: Fleet, guests: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    live.configure(MEGASLOP, additionalVirtHandlers=GUIDE_POOLS)
    live.settled()
    live.user("create", "-f", "-", stdin=GUIDE_VM)
    eventually(lambda: live.user.json("get", "pods", "-l", "kubevirt.io/domain=gpu-vm")["items"])
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(live.cluster.kubeconfig.read_bytes())
    environment = {"KUBECONFIG": str(kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    script = GUIDE_COMMANDS.replace("<name>", "gpu-vm").replace("<vmi-name>", "gpu-vm")
    answers = []
    for command in [f"kubectl config set-context --current --namespace={NAMESPACE}", *script.strip().splitlines()]:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, (command, done.stderr)
        answers.append(done.stdout)
    _, gates, logs, selector, pools, image = answers
    assert "AdditionalVirtHandlers" in gates
    assert "virt-operator" in logs
    assert json.loads(selector) == {"accelerator": "nvidia-gpu"}
    assert json.loads(pools) == GUIDE_POOLS
    assert image == "registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu"
    live.user("delete", "vmi", "gpu-vm", "--timeout=60s")
    live.configure(MEGASLOP, additionalVirtHandlers=None)
    live.settled()


@pytest.mark.local_home("a command of the local home")
def test_another_virtfleet_replaces_the_components_and_no_vm(live: Fleet, guests: dict[str, tuple[str, str]]) -> None:
    data = live.cluster.data
    assert data is not None
    settings = directory.load(data)
    assert settings is not None
    before = {pod["metadata"]["name"] for pod in live.admin.json("get", "pods")["items"]}
    directory.save(data, msgspec.structs.replace(settings, code="that of yesterday"))
    with HandlerWatch(live.cluster.kubeconfig) as watch:
        facts = json.loads(live.cluster.virtfleet("up", "-o", "json").stdout)
    assert facts["kubevirt"]["version"] == __version__
    # A virt-api that ends answers for a while.
    eventually(lambda: not before & {pod["metadata"]["name"] for pod in live.admin.json("get", "pods")["items"]})
    assert not watch.doubles
    live.settled()
    assert run_on(live, guests)
