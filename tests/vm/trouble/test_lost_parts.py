"""What VMs notice when the things around them go away and come back: nothing, unless it was their own node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET
from docblocks import following, run, shown
from vm.reader import environment
from vm.trouble.fleet import Fleet, kill, machine, tiny
from waiting import eventually

pytestmark = [pytest.mark.local_home("it kills processes on this machine"), pytest.mark.timeout(500)]
PATIENCE = 120.0
# Longer than it takes until nodes count as lost, were it not for the API server itself that was away.
AWAY = float(os.environ.get("VIRTFLEET_AWAY_SECONDS", "20"))


@pytest.fixture
def vm(fleet: Fleet) -> Iterator[str]:
    """The name of a VM that runs."""
    name = "steady"
    fleet.kubectl.apply(machine(tiny(name)))
    eventually(lambda: runs(fleet, name), PATIENCE)
    yield name
    fleet.kubectl("delete", "vm", name, "--timeout=80s")


def vmi(fleet: Fleet, name: str) -> Any:
    return fleet.kubectl.json("get", "vmi", name)


def runs(fleet: Fleet, name: str) -> bool:
    return bool(fleet.kubectl.json("get", "vm", name)["status"]["printableStatus"] == "Running")


def guest(fleet: Fleet, name: str) -> int:
    """The process of the guest."""
    (pod,) = vmi(fleet, name)["status"]["activePods"]
    (process,) = [p for p in fleet.processes() if p.pod == pod and p.program.startswith("qemu-system")]
    return process.pid


def phases(fleet: Fleet, name: str) -> list[str]:
    return [t["phase"] for t in vmi(fleet, name)["status"]["phaseTransitionTimestamps"]]


def test_a_guest_outlives_its_handler_and_what_happens_next_is_seen(fleet: Fleet, vm: str) -> None:
    before, uid = guest(fleet, vm), vmi(fleet, vm)["metadata"]["uid"]
    for process in fleet.programs("handler"):
        kill(process)
    assert guest(fleet, vm) == before
    # The next handler knows the VM: it sees the end that nobody told it of, and the VM is started again.
    (process,) = [p for p in fleet.processes() if p.pid == before]
    kill(process)
    eventually(lambda: vmi(fleet, vm)["metadata"]["uid"] != uid and runs(fleet, vm), PATIENCE)


def test_nothing_fails_while_the_api_server_is_away(fleet: Fleet, vm: str) -> None:
    before = guest(fleet, vm)
    pods = fleet.kubectl.json("get", "pods", "-A")["items"]
    fleet.take_api_server_away()
    time.sleep(AWAY)  # nothing can be waited for: nobody is there to be asked
    fleet.bring_api_server_back()
    eventually(lambda: runs(fleet, vm), PATIENCE)
    assert guest(fleet, vm) == before
    assert phases(fleet, vm) == ["Pending", "Scheduling", "Scheduled", "Running"]
    after = fleet.kubectl.json("get", "pods", "-A")["items"]
    assert {p["metadata"]["uid"] for p in after} == {p["metadata"]["uid"] for p in pods}
    # And all goes on as before.
    fleet.kubectl.apply(tiny("newcomer"))
    eventually(lambda: vmi(fleet, "newcomer")["status"]["phase"] == "Running", PATIENCE)
    fleet.kubectl("delete", "vmi", "newcomer", "--timeout=80s")


def test_vms_of_a_node_that_was_killed_run_again(fleet: Fleet, vm: str) -> None:
    first = vmi(fleet, vm)
    fleet.kubectl.apply(tiny("alone", nodeSelector={"kubernetes.io/hostname": first["status"]["nodeName"]}))
    eventually(lambda: vmi(fleet, "alone")["status"]["phase"] == "Running", PATIENCE)
    fleet.kill_node(first["status"]["nodeName"])
    eventually(lambda: vmi(fleet, vm)["metadata"]["uid"] != first["metadata"]["uid"] and runs(fleet, vm), PATIENCE)
    # Nobody asked for a VMI without a VM to be started again.
    eventually(lambda: vmi(fleet, "alone")["status"]["phase"] == "Failed", PATIENCE)
    fleet.kubectl("delete", "vmi", "alone", "--timeout=80s")


def test_a_dead_nodes_vms_start_elsewhere_once_it_is_fenced_and_never_before(
    fleet: Fleet, vm: str, tmp_path: Path
) -> None:
    first = vmi(fleet, vm)
    dead, uid = first["status"]["nodeName"], first["metadata"]["uid"]
    (pod,) = fleet.kubectl.json("get", "pods", "-l", f"kubevirt.io/created-by={uid}")["items"]
    reader = environment(fleet.cluster, tmp_path)
    run(shown(__file__, "virtfleet node kill"), tmp_path, reader, {"node-x": dead})
    assert node_ready(fleet, dead) == "Unknown"
    # As Kubernetes does after five minutes: nobody is there to end it, and nobody knows whether it runs.
    fleet.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    eventually(lambda: said(vmi(fleet, vm), "Ready", "PodTerminating"), PATIENCE)
    assert (vmi(fleet, vm)["metadata"]["uid"], vmi(fleet, vm)["status"]["phase"]) == (uid, "Running")
    assert fleet.kubectl.json("get", "pod", pod["metadata"]["name"])["metadata"]["deletionTimestamp"]
    try:
        with following(shown(__file__, "virtfleet node fence"), tmp_path, reader, {"node-b": dead}) as step:
            step()
            eventually(lambda: vmi(fleet, vm)["metadata"]["uid"] != uid and runs(fleet, vm), PATIENCE)
            assert vmi(fleet, vm)["status"]["nodeName"] != dead
            step()
    finally:
        node(fleet, "start", dead)
    eventually(lambda: node_ready(fleet, dead) == "True", PATIENCE)
    assert "taints" not in fleet.kubectl.json("get", "node", dead)["spec"]
    eventually(lambda: schedulable(fleet, dead), PATIENCE)


def node(fleet: Fleet, action: str, name: str) -> str:
    command = [VIRTFLEET, "node", action, "--data", str(fleet.data), name]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def node_ready(fleet: Fleet, name: str) -> str:
    status = fleet.kubectl.json("get", "node", name)["status"]
    return next(str(c["status"]) for c in status["conditions"] if c["type"] == "Ready")


def schedulable(fleet: Fleet, name: str) -> bool:
    return bool(fleet.kubectl.json("get", "node", name)["metadata"]["labels"].get("kubevirt.io/schedulable") == "true")


def said(obj: Any, kind: str, reason: str) -> bool:
    return any((c["type"], c.get("reason")) == (kind, reason) for c in obj["status"]["conditions"])
