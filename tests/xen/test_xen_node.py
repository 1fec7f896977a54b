"""A mixed fleet for real: a cluster that has the dom0 for a node, and a VM on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from cluster.clusters import VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from virtfleet import __version__
from virtfleet.local.nodesfile import NodeSpec
from vm.accessed import Terminal
from waiting import eventually
from xen import node
from xen.machine import DOMAINS, LIMIT, TREE, Shell

EXAMPLE = TREE / "examples/xen.yaml"
NODE = NodeSpec("xen-a", {"fleet.example/hypervisor": "xen"})
VMI = "paravirtual"


@pytest.fixture(scope="module")
def cluster(dom0: Shell, files: Path) -> Iterator[Cluster]:
    """A node of QEMU's on this machine, with all of VirtFleet; the dom0 joins when that is there."""
    cluster = start_local("nodes: [{name: node-a}]", "--kubevirt", str(EXAMPLE))
    assert cluster.data is not None
    try:
        node.join(cluster.data, NODE, dom0, files)
        yield cluster
    finally:
        stop_local(cluster)


def wait(kubectl: Kubectl, what: str, state: str) -> None:
    """Wait as `kubectl wait` does, for longer than one call of it may take."""
    eventually(lambda: kubectl.run("wait", what, f"--for={state}", "--timeout=60s").returncode == 0, LIMIT)


def test_a_vm_runs_on_a_node_that_is_xens_dom0(cluster: Cluster, dom0: Shell) -> None:
    kubectl, began = Kubectl(cluster), time.monotonic()

    def seen(what: str) -> None:
        sys.stderr.write(f"{what} after {time.monotonic() - began:.0f} s\n")

    wait(kubectl, f"node/{NODE.name}", "create")
    for name in ("hypervisor.node.kubevirt.io/xen", "kubevirt.io/schedulable"):
        wait(kubectl, f"node/{NODE.name}", "jsonpath={.metadata.labels." + name.replace(".", r"\.") + "}=true")
    seen("the handler has labelled its node")
    kubectl.apply(next(each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["metadata"]["name"] == VMI))
    wait(kubectl, f"vmi/{VMI}", "jsonpath={.status.phase}=Running")
    seen("the VMI runs")
    (pod,) = kubectl.json("get", "pods", "-l", f"kubevirt.io/domain={VMI}")["items"]
    assert pod["spec"]["nodeName"] == NODE.name
    assert pod["metadata"]["labels"]["kubevirt.io/handler-pool"] == "xen"
    (image,) = {container["image"] for container in pod["spec"]["containers"]}
    assert image == f"virtfleet/virt-launcher-xen:{__version__}"
    assert f"default_{VMI} " in dom0.run("xl list")

    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    terminal = Terminal([VIRTFLEET, "console", VMI], environment)
    try:
        terminal.says("guest# ", nudge="\r")
        terminal.type("echo $((6 * 7)) is the answer\r")
        terminal.says("42 is the answer")
    finally:
        terminal.close()
    seen("the guest has answered on its console")
    address = kubectl.json("get", "vmi", VMI)["status"]["interfaces"][0]["ipAddress"]
    with urlopen(f"http://{address}/", timeout=60) as answer:
        assert VMI in answer.read().decode()
    seen("the guest has answered from its network")

    kubectl("delete", "vmi", VMI, "--timeout=80s")
    seen("the VMI is gone")
    assert dom0.run(DOMAINS) == "", "nothing is left in Xen"
