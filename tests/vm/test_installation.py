"""The whole way: an installation by the operator on a cluster of three nodes, a pool, and a guest that boots.

What `virtfleet up` makes of the files under examples/.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from cluster.clusters import Cluster, Kubectl
from virtfleet import __version__
from virtfleet.local import directory
from vm.guests import container
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.vm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes run real containers, which needs root"),
]


@pytest.fixture(scope="module")
def kubectl(fleet: Cluster) -> Kubectl:
    return Kubectl(fleet)


def handlers(kubectl: Kubectl) -> dict[str, str]:
    """Node -> the DaemonSet whose handler serves it."""
    pods = Kubectl(kubectl.cluster, "kubevirt").json("get", "pods", "-l", "kubevirt.io=virt-handler")["items"]
    return {p["spec"]["nodeName"]: p["metadata"]["ownerReferences"][0]["name"] for p in pods}


def test_each_node_is_served_by_the_handler_of_its_pool(kubectl: Kubectl) -> None:
    assert handlers(kubectl) == {
        "node-a": "virt-handler",
        "node-b": "virt-handler-canary",
        "node-c": "virt-handler-megaslop",
    }


def test_a_guest_boots_reports_itself_and_goes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "vmi.yaml"))
    kubectl("wait", "vmi/demo", "--for=jsonpath={.status.phase}=Running", "--timeout=80s")
    eventually(
        lambda: kubectl.run("wait", "vmi/demo", "--for=condition=AgentConnected", "--timeout=60s").returncode == 0, 180
    )
    vmi = kubectl.json("get", "vmi", "demo")
    conditions = {c["type"]: c["status"] for c in vmi["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert vmi["status"]["nodeName"] in ("node-a", "node-b", "node-c")
    pod = kubectl.json("get", "pods", "-l", "kubevirt.io/domain=demo")["items"][0]
    assert vmi["status"]["interfaces"][0]["ipAddress"] == pod["status"]["podIP"]
    assert eventually(lambda: kubectl.json("get", "vmi", "demo")["status"]["guestOSInfo"]["name"]) == "VirtFleet guest"
    probe = ("exec", pod["metadata"]["name"], "--", "virt-launcher", "probe", "--timeout", "30")
    kubectl(*probe)
    assert "uid=0" in kubectl(*probe, "--", "/bin/sh", "-c", "id"), "in the guest"
    kubectl.fails(*probe, "--", "/bin/sh", "-c", "exit 1")
    # A guest that is switched off from outside ends in grace, and takes its pod with it.
    kubectl("delete", "vmi", "demo", "--timeout=60s")
    eventually(lambda: not kubectl.json("get", "pods", "-l", "kubevirt.io/domain=demo")["items"])


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="libvirt's containers need /dev/fuse")
def test_a_guest_on_another_hypervisor_runs_beside_the_others(kubectl: Kubectl) -> None:
    vmi = container()
    vmi["metadata"] = {"name": "box"}
    kubectl("create", "-f", "-", stdin=json.dumps(vmi))
    kubectl("wait", "vmi/box", "--for=jsonpath={.status.phase}=Running", "--timeout=80s")
    (pod,) = kubectl.json("get", "pods", "-l", "kubevirt.io/domain=box")["items"]
    compute = next(c for c in pod["spec"]["containers"] if c["name"] == "compute")
    assert compute["image"] == f"virtfleet/virt-launcher-lxc:{__version__}"

    def hello() -> str:
        with suppress(OSError), urlopen(f"http://{pod['status']['podIP']}/", timeout=5) as answer:
            return answer.read().decode()
        return ""

    assert eventually(hello, 60) == "hello from box at 10.0.2.2\n"
    groups = list(Path("/sys/fs/cgroup").glob(f"**/*{pod['metadata']['uid']}*/**/*box.libvirt-lxc"))
    assert groups, "what the guest uses counts towards its Pod"
    kubectl("delete", "vmi", "box", "--timeout=60s")
    eventually(lambda: not any(group.exists() for group in groups))


def test_up_once_more_changes_nothing(kubectl: Kubectl) -> None:
    def workloads() -> dict[str, str]:
        found = Kubectl(kubectl.cluster, "kubevirt").json("get", "kubevirts,deployments,daemonsets,pods")["items"]
        return {f"{obj['kind']}/{obj['metadata']['name']}": obj["metadata"]["uid"] for obj in found}

    assert kubectl.cluster.data is not None
    before, code = workloads(), directory.load(kubectl.cluster.data)
    facts = json.loads(kubectl.cluster.virtfleet("up", "-o", "json").stdout)
    assert facts["ready"] and facts["kubevirt"]["version"] == __version__
    assert [process["restarts"] for process in facts["processes"]] == [0] * len(facts["processes"])
    if directory.load(kubectl.cluster.data) != code:
        pytest.skip("somebody changed VirtFleet while this test ran, so its components were replaced")
    assert workloads() == before
