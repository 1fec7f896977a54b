"""Every file under examples/, in use: guests boot, get addresses, reach each other, are reached, stop and start again.

The VMs start beside each other and share one cluster, because booting is what takes time.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import docblocks
from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from cluster.manifests import pod
from virtfleet import __version__
from virtfleet.hypervisors.containers import first_id
from vm.reader import environment
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 500.0  # emulated guests boot beside each other on two cores that have other things to do
NAMESPACE = "examples"
IMPORTED = "examples-imported"
BOOTED_AT_ONCE = (
    *("vmi.yaml", "vm.yaml", "lxc.yaml", "web.yaml", "cloud-init.yaml", "probes.yaml", "virtiofs.yaml", "disk.yaml"),
)

pytestmark = pytest.mark.timeout(1200)

F = TypeVar("F", bound=Callable[..., None])
exercised: set[str] = set()


def exercises(*files: str) -> Callable[[F], F]:
    """Marks a test as the one that shows an example at work."""
    exercised.update(files)
    return lambda test: test


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def demo(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Rows]:
    """What `virtfleet demo` shows in the end."""
    data, file = fleet.data, EXAMPLES / "demo.yaml"
    if data is None:  # the command looks for a cluster in a directory
        data = tmp_path_factory.mktemp("home")
        shutil.copy(fleet.kubeconfig, data / "kubeconfig")
    command = [VIRTFLEET, "demo", "--data", str(data), "-f", str(file), "-o", "json"]

    def run() -> Rows:
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        rows: Rows = json.loads(done.stdout)["vms"]
        return rows

    return run


@pytest.fixture(scope="module")
def shown(fleet: Cluster, demo: Callable[[], Rows]) -> Iterator[Rows]:
    """The demo. A Pod is there to visit the guests."""
    kubectl = Kubectl(fleet)
    kubectl.apply(pod("visitor"))
    try:
        yield demo()
    finally:
        kubectl("delete", "pod", "visitor", "--now")
        kubectl("delete", "--ignore-not-found", "--timeout=80s", "-f", str(EXAMPLES / "demo.yaml"))


@pytest.fixture(scope="module")
def kubectl(fleet: Cluster, shown: Rows) -> Iterator[Kubectl]:
    """kubectl where the VMs of the other examples are. Those of the demo, which has a deadline, go first."""
    everywhere, kubectl = Kubectl(fleet), Kubectl(fleet, NAMESPACE)
    for namespace in (NAMESPACE, IMPORTED):
        everywhere("create", "namespace", namespace)
    try:
        for file in BOOTED_AT_ONCE:
            kubectl("apply", "-f", str(EXAMPLES / file))
        Kubectl(fleet, IMPORTED)("apply", "-f", str(EXAMPLES / "datavolume.yaml"))
        yield kubectl
    finally:
        everywhere("delete", "namespace", NAMESPACE, IMPORTED, "--timeout=80s")


def wait(kubectl: Kubectl, what: str, state: str) -> None:
    """Wait as `kubectl wait` does, for as long as ten guests may take."""
    eventually(lambda: kubectl.run("wait", what, f"--for={state}", "--timeout=60s").returncode == 0, PATIENCE)


def booted(kubectl: Kubectl, vmi: str) -> dict[str, Any]:
    """The VMI, when its guest's agent has answered."""
    wait(kubectl, f"vmi/{vmi}", "condition=AgentConnected")
    found: dict[str, Any] = kubectl.json("get", "vmi", vmi)
    return found


def address(vmi: dict[str, Any]) -> str:
    return str(vmi["status"]["interfaces"][0]["ipAddress"])


def pod_of(kubectl: Kubectl, vmi: str) -> dict[str, Any]:
    (pod,) = kubectl.json("get", "pods", "-l", f"kubevirt.io/domain={vmi}", "--field-selector=status.phase=Running")[
        "items"
    ]
    found: dict[str, Any] = pod
    return found


def inside(kubectl: Kubectl, vmi: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the guest, by way of its agent: what a probe runs."""
    pod = pod_of(kubectl, vmi)["metadata"]["name"]
    return kubectl.run("exec", pod, "--", "virt-launcher", "probe", "--timeout", "30", "--", *command)


FETCH = """
import sys, time, urllib.request
url, wanted = sys.argv[1:]
until = time.monotonic() + 60
while time.monotonic() < until:
    try:
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        if text == (wanted or text):
            print(text, end="")
            break
    except OSError:
        pass
    time.sleep(0.3)
"""


def page(kubectl: Kubectl, where: str, path: str = "", wanted: str = "") -> str:
    """What a guest's web server answers to a Pod, when it does, and when that is what is wanted.

    The Pod is who waits: a command in it for each look would take the machine from what is waited for.
    """
    ask = ("exec", "visitor", "--", "/usr/bin/python3", "-c", FETCH, f"http://{where}/{path}", wanted)
    return eventually(lambda: Kubectl(kubectl.cluster).run(*ask).stdout, PATIENCE)


def test_no_example_is_without_a_test() -> None:
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml")}
    assert files == exercised


@pytest.mark.parametrize("file", sorted(str(p.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("*.yaml")))
def test_examples_are_what_the_cluster_admits(file: str) -> None:
    if file == "nodes.yaml":
        return
    kubevirt = str(EXAMPLES / (file if file.startswith("pools/") else "kubevirt.yaml"))
    command = [VIRTFLEET, "validate", "-f", str(EXAMPLES / file), "--kubevirt", kubevirt]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@exercises("kubevirt.yaml", "nodes.yaml")
def test_each_node_is_served_by_the_handler_of_its_pool(fleet: Cluster) -> None:
    ordinary, canary, special = fleet.nodes[:3]
    pods = Kubectl(fleet, "kubevirt").json("get", "pods", "-l", "kubevirt.io=virt-handler")["items"]
    assert {pod["spec"]["nodeName"]: pod["metadata"]["ownerReferences"][0]["name"] for pod in pods} == {
        ordinary: "virt-handler",
        canary: "virt-handler-canary",
        special: "virt-handler-megaslop",
    }


@exercises("demo.yaml")
def test_the_demo_shows_vms_of_each_pool_with_its_image_on_its_nodes(fleet: Cluster, shown: Rows) -> None:
    rows = {row["vm"]: row for row in shown}
    expected = {
        "plain": ("(primary)", "qemu-kvm", f"virt-launcher:{__version__}"),
        "slopped": ("megaslop", "qemu-kvm", "virt-launcher:megaslop"),
        "canary": ("canary", "qemu-kvm", "virt-launcher:canary"),
        "box": ("(primary)", "lxc", f"virt-launcher-lxc:{__version__}"),
    }
    images = {name: (row["pool"], row["hypervisor"], row["image"].split("/")[1]) for name, row in rows.items()}
    assert images == expected
    _, canary, special = fleet.nodes[:3]
    assert (rows["slopped"]["node"], rows["canary"]["node"]) == (special, canary)
    for name, row in rows.items():
        assert row["booted"] and row["phase"] == "Running"
        assert row["console"].startswith(f"virtfleet-guest ready name={name} ")
        assert page(Kubectl(fleet), row["address"]) == f"hello from {name} at 10.0.2.2\n"


@pytest.mark.local_home("`make up` starts that one")
@pytest.mark.usefixtures("shown")
def test_make_up_is_as_the_readme_says(fleet: Cluster, tmp_path: Path) -> None:
    """Once more, on the cluster that it would start."""
    readme = docblocks.shown(__file__, "make up")
    with docblocks.following(readme, EXAMPLES.parent, environment(fleet, tmp_path), longest=PATIENCE) as step:
        for _ in readme.steps:
            step()


def test_the_guest_sees_the_device_that_the_pools_plugin_handed_out(
    fleet: Cluster, shown: Rows, tmp_path: Path
) -> None:
    kubectl = Kubectl(fleet)
    for name in ("slopped", "plain"):
        booted(kubectl, name)
    docblocks.run(docblocks.shown(__file__, "kubectl exec"), tmp_path, environment(fleet, tmp_path))
    look = ("sh", "-c", "cat /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/device")
    assert {"0x1234", "0x11e8"} <= set(inside(kubectl, "slopped", *look).stdout.split())
    assert "0x11e8" not in inside(kubectl, "plain", *look).stdout.split()


def test_the_demo_can_be_repeated_and_leaves_what_runs(fleet: Cluster, shown: Rows, demo: Callable[[], Rows]) -> None:
    kubectl = Kubectl(fleet)
    before = kubectl("get", "vmi", "-o", "jsonpath={.items[*].metadata.uid}")
    assert demo() == shown
    assert kubectl("get", "vmi", "-o", "jsonpath={.items[*].metadata.uid}") == before


@pytest.mark.thorough("a guest ends as it does in the local home")
@exercises("vmi.yaml")
def test_a_vmi_tells_of_its_guest_and_ends_in_grace(kubectl: Kubectl) -> None:
    vmi = booted(kubectl, "demo")
    assert address(vmi) == pod_of(kubectl, "demo")["status"]["podIP"]
    system = eventually(lambda: kubectl.json("get", "vmi", "demo")["status"].get("guestOSInfo"), PATIENCE)
    assert system["name"] == "VirtFleet guest"
    kubectl("delete", "vmi", "demo", "--timeout=80s")
    assert kubectl.json("get", "pods", "-l", "kubevirt.io/domain=demo")["items"] == []


@pytest.mark.thorough("virtctl stops and starts one")
@exercises("vm.yaml")
def test_a_vm_stops_and_starts_again(kubectl: Kubectl) -> None:
    first = booted(kubectl, "steady")["metadata"]["uid"]
    kubectl("patch", "vm", "steady", "--type=merge", "-p", '{"spec": {"runStrategy": "Halted"}}')
    wait(kubectl, "vm/steady", "jsonpath={.status.printableStatus}=Stopped")
    assert not kubectl("get", "vmi", "-l", "vm.kubevirt.io/name=steady", "-o", "name")
    kubectl("patch", "vm", "steady", "--type=merge", "-p", '{"spec": {"runStrategy": "Always"}}')
    wait(kubectl, "vm/steady", "jsonpath={.status.printableStatus}=Running")
    vmi = kubectl.json("get", "vmi", "steady")
    assert vmi["metadata"]["uid"] != first
    assert page(kubectl, address(vmi)) == "hello from steady at 10.0.2.2\n"


@exercises("lxc.yaml")
def test_a_vmi_names_another_hypervisor(kubectl: Kubectl) -> None:
    wait(kubectl, "vmi/light", "jsonpath={.status.phase}=Running")
    assert page(kubectl, address(kubectl.json("get", "vmi", "light"))) == "hello from light at 10.0.2.2\n"
    pod = pod_of(kubectl, "light")
    groups = list(Path("/sys/fs/cgroup").glob(f"**/*{pod['metadata']['uid']}*/**/*light.libvirt-lxc"))
    assert groups, "what the guest uses counts towards its Pod"
    assert not any(c["securityContext"].get("privileged") for c in pod["spec"]["containers"])
    processes = {number for group in groups for number in (group / "cgroup.procs").read_text().split()}
    users = {Path(f"/proc/{number}/uid_map").read_text().split()[1] for number in processes}
    assert str(first_id(kubectl.json("get", "vmi", "light")["metadata"]["uid"])) in users
    kubectl("delete", "vmi", "light", "--timeout=80s")
    eventually(lambda: not any(group.exists() for group in groups))


@exercises("cloud-init.yaml")
def test_cloud_init_from_a_secret_sets_a_bridged_guest_up(kubectl: Kubectl) -> None:
    where = address(booted(kubectl, "greeter"))
    assert page(kubectl, where, "greeting") == "greetings from greeter\n"
    assert page(kubectl, where) == f"hello from greeter at {where}\n", "a bridged guest has the Pod's own address"


@exercises("probes.yaml")
def test_probes_go_into_the_guest(kubectl: Kubectl) -> None:
    wait(kubectl, "vmi/probed", "condition=Ready")
    (compute,) = pod_of(kubectl, "probed")["spec"]["containers"]
    assert compute["readinessProbe"]["exec"]["command"][-4:] == ["--", "test", "-e", "/www/index.html"]
    assert inside(kubectl, "probed", "rm", "/www/index.html").returncode == 0
    wait(kubectl, "vmi/probed", "condition=Ready=False")


@exercises("virtiofs.yaml")
def test_a_config_map_is_a_directory_of_the_guest_and_follows_its_changes(kubectl: Kubectl) -> None:
    where = address(booted(kubectl, "canteen"))
    assert page(kubectl, where, "menu/today") == "dumplings"
    kubectl("patch", "configmap", "menu", "-p", json.dumps({"data": {"today": "noodles"}}))
    # A kubelet looks at it once a minute, and where the Pod changes.
    kubectl("annotate", "pod", "-l", "vm.kubevirt.io/name=canteen", "menu=changed")
    assert page(kubectl, where, "menu/today", wanted="noodles")


@exercises("disk.yaml")
def test_a_disk_on_a_claim_outlives_its_vm(kubectl: Kubectl) -> None:
    first = booted(kubectl, "notebook")
    assert page(kubectl, address(first), "starts") == "start number 1\n"
    kubectl("delete", "vmi", "notebook", "--timeout=80s")
    again = eventually(lambda: _successor(kubectl, first), PATIENCE)
    assert page(kubectl, address(again), "starts") == "start number 2\n"


def _successor(kubectl: Kubectl, vmi: dict[str, Any]) -> dict[str, Any] | None:
    """The VMI that a VM started after another one, when it has an address."""
    wait(kubectl, f"vmi/{vmi['metadata']['name']}", "jsonpath={.status.phase}=Running")
    found: dict[str, Any] = kubectl.json("get", "vmi", vmi["metadata"]["name"])
    return found if found["metadata"]["uid"] != vmi["metadata"]["uid"] else None


@exercises("datavolume.yaml")
def test_a_vm_boots_from_a_disk_that_was_imported_for_it(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl = Kubectl(kubectl.cluster, IMPORTED)
    page = docblocks.shown(__file__, "kubectl apply -f examples/datavolume.yaml")
    docblocks.run(page, tmp_path, environment(kubectl.cluster, tmp_path, IMPORTED), {"created": "unchanged"})
    vmi = booted(kubectl, "imported")
    volume = kubectl.json("get", "dv", "imported")
    assert volume["status"]["phase"] == "Succeeded"
    told = {c["type"]: c for c in volume["status"]["conditions"]}
    assert {kind: c["status"] for kind, c in told.items()} == {"Bound": "True", "Ready": "True", "Running": "False"}
    assert vmi["metadata"]["creationTimestamp"] >= told["Ready"]["lastTransitionTime"], "it waited for the disk"
    kubectl("delete", "vm", "imported", "--timeout=80s")

    def gone() -> bool:
        return not [o for o in kubectl.json("get", "dv,pvc")["items"] if o["metadata"]["name"] == "imported"]

    eventually(gone, PATIENCE)


@exercises("web.yaml")
def test_a_service_stands_before_a_replica_set_that_scales(kubectl: Kubectl) -> None:
    wait(kubectl, "vmirs/web", "jsonpath={.status.readyReplicas}=2")
    service = kubectl.json("get", "service", "web")["spec"]["clusterIP"]
    replicas = _replicas(kubectl)
    booted(kubectl, "greeter")
    answers: set[str] = set()

    def both_answer() -> bool:
        """A guest of another VM asks the Service, over both their Pods' networks."""
        answers.add(inside(kubectl, "greeter", "wget", "-qO-", f"http://{service}/").stdout)
        return answers >= {f"hello from {name} at 10.0.2.2\n" for name in replicas}

    eventually(both_answer, PATIENCE)
    kubectl("scale", "vmirs/web", "--replicas=1")
    (left,) = eventually(lambda: found if len(found := _replicas(kubectl)) == 1 else None, PATIENCE)
    assert left in replicas
    kubectl("delete", "vmirs", "web", "--timeout=80s")
    eventually(lambda: not _replicas(kubectl), PATIENCE)


def _replicas(kubectl: Kubectl) -> list[str]:
    return kubectl("get", "vmi", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}").split()


def test_guests_reach_each_other_and_pods_reach_guests(kubectl: Kubectl, shown: Rows) -> None:
    booted(kubectl, "greeter")
    other = next(row for row in shown if row["vm"] == "slopped")
    answer = inside(kubectl, "greeter", "wget", "-qO-", f"http://{other['address']}/")
    assert answer.stdout == "hello from slopped at 10.0.2.2\n", answer.stderr
    assert page(kubectl, other["address"]) == "hello from slopped at 10.0.2.2\n"


def test_kubectl_shows_the_columns_that_kubevirt_has(kubectl: Kubectl, shown: Rows) -> None:
    def columns(*args: str) -> list[str]:
        return Kubectl(kubectl.cluster)("get", *args).splitlines()[0].split()

    assert columns("vm") == ["NAME", "AGE", "STATUS", "READY"]
    assert columns("vmi") == ["NAME", "AGE", "PHASE", "IP", "NODENAME", "READY"]
    more = ["LIVE-MIGRATABLE", "PAUSED", "POOL", "HYPERVISOR"]
    assert columns("vmi", "-o", "wide") == [*columns("vmi"), *more]


@exercises("pools/node-selector.yaml", "pools/exclusive.yaml", "pools/hypervisor.yaml", "xen.yaml")
@pytest.mark.parametrize(
    ("file", "pool", "image", "nodes"),
    [
        ("xen", "xen", f"virt-launcher-xen:{__version__}", []),  # tests/xen has a node for it
        ("pools/node-selector", "canary", "virt-launcher:canary", ["node-b"]),
        ("pools/exclusive", None, f"virt-launcher:{__version__}", ["node-a", "node-b"]),
        ("pools/hypervisor", "boxes", f"virt-launcher-lxc:{__version__}", ["node-b"]),
    ],
)
def test_pools_are_explained_without_a_cluster(file: str, pool: str | None, image: str, nodes: list[str]) -> None:
    example = str(EXAMPLES / f"{file}.yaml")
    options = ("-f", example, "--kubevirt", example, "--nodes", str(EXAMPLES / "nodes.yaml"), "-o", "json")
    done = subprocess.run([VIRTFLEET, "explain", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["pool"], found["image"]) == (pool, f"virtfleet/{image}")
    assert [node["name"] for node in found["nodes"] if node["fits"]] == nodes
