"""Console blocks of the documentation, as they stand there, on the cluster that `make up` starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from cluster.manifests import FOREVER, IMAGE
from docblocks import Block, blocks, following, matches, run, shown
from virtfleet import __version__
from virtfleet.api import names
from vm.reader import environment
from vm.test_virtctl import virtctl
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 300.0
WEBHOOK: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kubevirt-aie-launcher-config"},
    "data": {
        "config.yaml": yaml.safe_dump(
            {
                "rules": [
                    {
                        "name": "GPU Launcher",
                        "image": "registry.example.com/virt-launcher:gpu",
                        "selector": {"deviceNames": ["nvidia.com/GPU"]},
                    }
                ]
            }
        )
    },
}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.local_home("the pages show the cluster of `make up`"),
]


@pytest.fixture
def reader(fleet: Cluster, tmp_path: Path) -> dict[str, str]:
    return environment(fleet, tmp_path, virtctl=virtctl())


@pytest.fixture
def tidied(fleet: Cluster) -> Iterator[None]:
    """What the pages speak of is there, and what they make is gone in the end."""
    kubectl = Kubectl(fleet)
    kubectl.apply(WEBHOOK)
    yield
    kubectl("delete", "pod/try", "vm/web", f"cm/{WEBHOOK['metadata']['name']}", "--ignore-not-found", "--now")


@pytest.mark.usefixtures("tidied")
@pytest.mark.parametrize("block", [block for block in blocks() if block.mark == "run: fleet"], ids=str)
def test_the_page_shows_what_is_printed(block: Block, reader: dict[str, str], tmp_path: Path) -> None:
    run(block, tmp_path, reader)


def test_up_has_said_what_the_page_shows(fleet: Cluster) -> None:
    [(_, text)] = shown(__file__, "virtfleet up --nodes examples/nodes.yaml --kubevirt examples/kubevirt.yaml").steps
    assert matches(text, fleet.said), fleet.said


def test_the_doctor_finds_a_node_that_takes_no_vm(fleet: Cluster, reader: dict[str, str], tmp_path: Path) -> None:
    kubectl = Kubectl(fleet)
    kubectl("cordon", "node-b")
    try:
        run(shown(__file__, "virtfleet doctor"), tmp_path, reader)
    finally:
        kubectl("uncordon", "node-b")


def test_nodes_that_fail(fleet: Cluster, reader: dict[str, str], tmp_path: Path) -> None:
    kubectl, names = Kubectl(fleet), {"node-b": "node-x"}

    def node(action: str) -> None:
        command = [VIRTFLEET, "node", action, "--data", str(fleet.data), "node-x"]
        subprocess.run(command, check=True, capture_output=True, timeout=LONGEST)

    container = {"name": "c", "image": IMAGE, "command": FOREVER}
    web = {"nodeName": "node-x", "containers": [container], "terminationGracePeriodSeconds": 0}
    node("add")
    try:
        eventually(lambda: kubectl.run("wait", "node/node-x", "--for=condition=Ready").returncode == 0, LONGEST)
        kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": web})
        kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
        node("kill")
        run(shown(__file__, "virtfleet node start"), tmp_path, reader)
        kubectl("delete", "pod", "web", "--now")
        node("kill")
        run(shown(__file__, "kubectl taint"), tmp_path, reader, names)
        kubectl("taint", "node", "node-x", "node.kubernetes.io/out-of-service:NoExecute-")
        node("start")
        eventually(lambda: kubectl("get", "pod", "-A", "--field-selector=spec.nodeName=node-x", "-o", "name"))
        with following(shown(__file__, "kubectl drain"), tmp_path, reader, names, LONGEST) as step:
            step()
            node("kill")
            step()
    finally:
        node("rm")


@pytest.fixture(scope="module")
def other_pools(fleet: Cluster) -> Iterator[None]:
    """From now on the cluster has the pools of one example after the other, until this module ends."""
    yield
    fleet.virtfleet("up", "--kubevirt", str(EXAMPLES / "kubevirt.yaml"))


@pytest.fixture
def emptied(fleet: Cluster, other_pools: None) -> Iterator[None]:
    yield
    Kubectl(fleet)("delete", "vmi", "--all", "--timeout=60s")


@pytest.mark.usefixtures("emptied")
def test_a_cluster_with_the_pools_of_an_example(fleet: Cluster, reader: dict[str, str], tmp_path: Path) -> None:
    example = shown(__file__, "virtfleet up --nodes examples/nodes.yaml --kubevirt examples/pools/exclusive.yaml")
    with following(example, tmp_path, reader, longest=LONGEST) as step:
        for _ in example.steps:
            step()
    _, _, special = fleet.nodes
    assert Kubectl(fleet).json("get", "vmi", "ordinary")["status"]["nodeName"] != special


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize(
    ("example", "vmi", "pool", "image"),
    [
        ("node-selector", "selective", "canary", "virt-launcher:canary"),
        ("hypervisor", "boxed", "boxes", f"virt-launcher-lxc:{__version__}"),
    ],
)
def test_the_pool_of_an_example_takes_its_vm(fleet: Cluster, example: str, vmi: str, pool: str, image: str) -> None:
    kubectl, file = Kubectl(fleet), EXAMPLES / "pools" / f"{example}.yaml"
    fleet.virtfleet("up", "--kubevirt", str(file))
    _, document = yaml.safe_load_all(file.read_text())
    kubectl.apply(document)
    kubectl("wait", f"vmi/{vmi}", "--for=jsonpath={.status.phase}=Running", f"--timeout={LONGEST:.0f}s")
    _, canary, _ = fleet.nodes
    running = kubectl.json("get", "vmi", vmi)
    assert running["status"]["nodeName"] == canary
    assert running["metadata"]["labels"][names.HANDLER_POOL] == pool
    [launcher] = kubectl.json("get", "pod", "-l", f"{names.CREATED_BY}={running['metadata']['uid']}")["items"]
    compute = next(each for each in launcher["spec"]["containers"] if each["name"] == "compute")
    assert compute["image"] == f"virtfleet/{image}"
