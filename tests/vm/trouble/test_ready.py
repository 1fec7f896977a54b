"""`up` after `down` says that the cluster is ready when it is: what people do next works at once, every time.

VIRTFLEET_READY_ROUNDS makes it longer; a few rounds are part of every run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cluster.clusters import VIRTFLEET
from vm.trouble.fleet import Fleet, machine, tiny
from waiting import eventually

ROUNDS = int(os.environ.get("VIRTFLEET_READY_ROUNDS", "1"))
PATIENCE = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_home("commands of the local home"),
    pytest.mark.timeout(300 + 120 * ROUNDS),
]


def not_ready(fleet: Fleet) -> list[str]:
    """Components without a Ready Pod, and VMIs that are said to run although nothing of them does."""
    pods = fleet.kubectl.json("get", "pods", "-A")["items"]
    running = {p["metadata"]["uid"] for p in pods if p["status"].get("phase") == "Running"}
    components = [p for p in pods if p["metadata"]["namespace"] == "kubevirt"]
    vmis = fleet.kubectl.json("get", "vmis", "-A")["items"]
    dead = [v for v in vmis if v["status"].get("phase") == "Running" and not running & set(v["status"]["activePods"])]
    return [
        *(p["metadata"]["name"] for p in components if not all(c["ready"] for c in p["status"]["containerStatuses"])),
        *(v["metadata"]["name"] for v in dead),
    ]


def test_what_is_said_to_be_ready_is(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl, took = fleet.kubectl, []
    kubectl.apply(machine(tiny("lasting")))
    kubectl.apply(tiny("mortal"))
    eventually(lambda: kubectl.json("get", "vmi", "mortal")["status"]["phase"] == "Running", PATIENCE)
    try:
        for number in range(ROUNDS):
            fleet.cluster.virtfleet("down")
            assert fleet.cluster.virtfleet("status", check=False).returncode == 1
            began = time.monotonic()
            fleet.cluster.virtfleet("up")
            took.append(time.monotonic() - began)
            assert not_ready(fleet) == []
            kubectl.apply(machine(tiny(f"next{number}"), strategy="Halted"))  # admitted, by webhooks that answer
            assert kubectl.json("get", "vmi", "mortal")["status"]["phase"] == "Failed"
            assert "not ready" not in fleet.cluster.virtfleet("status").stdout
    finally:
        with capsys.disabled():
            sys.stdout.write(f"\n{len(took)} rounds; up took {', '.join(f'{seconds:.1f}' for seconds in took)} s\n")
    eventually(lambda: kubectl.json("get", "vm", "lasting")["status"]["printableStatus"] == "Running", PATIENCE)
    kubectl("delete", "vm,vmi", "--all", "--timeout=80s")


def test_an_interrupted_up_leaves_no_cluster_that_is_said_to_be_ready(fleet: Fleet) -> None:
    fleet.cluster.virtfleet("down")
    command = [VIRTFLEET, "up", "--data", str(fleet.data)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "the API server answers" in line:
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=60)
    assert process.returncode != 0
    status = fleet.cluster.virtfleet("status", check=False)
    assert status.returncode == 1
    assert "not ready" in status.stdout
    assert "virtfleet up" in status.stdout
    fleet.cluster.virtfleet("up")
    assert fleet.cluster.virtfleet("status").returncode == 0


def test_a_frozen_api_server_is_replaced_and_vms_do_not_notice(fleet: Fleet) -> None:
    fleet.kubectl.apply(machine(tiny("steady")))
    vm = ("get", "vm", "steady")
    eventually(lambda: fleet.kubectl.json(*vm)["status"]["printableStatus"] == "Running", PATIENCE)
    before = {p.pid for p in fleet.programs("qemu-system-x86_64")}
    frozen = fleet.supervised("control-plane")
    os.kill(frozen, signal.SIGSTOP)
    eventually(lambda: fleet.supervised("control-plane") not in (0, frozen), 60)

    def ready() -> str:
        status = fleet.cluster.virtfleet("status", check=False)
        return status.stdout if status.returncode == 0 else ""

    assert "gave no sign of life for 20 s" in eventually(ready, PATIENCE)
    assert {p.pid for p in fleet.programs("qemu-system-x86_64")} == before
    fleet.kubectl.apply(machine(tiny("newcomer")))
    eventually(lambda: fleet.kubectl.json("get", "vm", "newcomer")["status"]["printableStatus"] == "Running", PATIENCE)
    fleet.kubectl("delete", "vm", "--all", "--timeout=80s")
