"""What people read about a VM."""

from __future__ import annotations

from typing import Any

import pytest

from controller.objects import NOW, START, claim, condition, stop, vm, vmi
from controller.test_strategy import failures
from virtfleet.api.conditions import find
from virtfleet.controller.lifecycle import Trouble
from virtfleet.controller.vmstatus import View, change, printable

UNSCHEDULABLE = condition("PodScheduled", "False", "Unschedulable")


def synchronized(reason: str) -> dict[str, Any]:
    return condition("Synchronized", "False", reason)


@pytest.mark.parametrize(
    ("view", "word"),
    [
        (View(vm("Halted"), None), "Stopped"),
        (View(vm("Always"), vmi("Pending")), "Starting"),
        (View(vm("Always"), vmi("Scheduling")), "Starting"),
        (View(vm("Always"), vmi("Scheduled")), "Starting"),
        (View(vm("Always"), vmi("Running")), "Running"),
        (View(vm("Always"), vmi("Running", conditions=[condition("Paused", "True")])), "Paused"),
        (View(vm("Always"), vmi("Running", deleting=True)), "Stopping"),
        (View(vm("Always"), vmi("Succeeded")), "Stopped"),
        (View(vm("Always"), vmi("Failed")), "Stopped"),
        (View(vm("Always", deleting=True), vmi("Running", deleting=True)), "Terminating"),
        (
            View(vm("Always"), vmi("Running", status={"migrationState": {"startTimestamp": "2026-01-01T00:00:00Z"}})),
            "Migrating",
        ),
        (View(vm("Always"), vmi("Scheduling", conditions=[UNSCHEDULABLE])), "ErrorUnschedulable"),
        (
            View(vm("Always"), vmi("Pending", conditions=[UNSCHEDULABLE, synchronized("FailedPvcNotFound")])),
            "ErrorPvcNotFound",
        ),
        (View(vm("Always"), vmi("Scheduling", conditions=[synchronized("ErrImagePull")])), "ErrImagePull"),
        (View(vm("Always"), vmi("Scheduling", conditions=[synchronized("ImagePullBackOff")])), "ImagePullBackOff"),
        (View(vm("Always"), vmi("Scheduling"), (claim("disk", phase="Pending"),)), "WaitingForVolumeBinding"),
        (View(vm("Halted"), None, (claim("disk", phase="Pending"),)), "Stopped"),
        (View(vm("Always"), vmi("Unknown")), "Unknown"),
    ],
)
def test_one_word_for_the_state(view: View, word: str) -> None:
    assert printable(view, failing=False) == word


def test_a_vm_keeps_what_its_guest_knows_of_its_machine_but_the_cpu() -> None:
    known = {
        "machine": "pc-q35-7.2",
        "loader": "",
        "variables": "",
        "secureBoot": False,
        "devices": [{"name": "disk/virtio/root", "address": "0000:04:00.0", "target": "vda"}],
    }
    running = vmi("Running", status={"guestABI": {**known, "cpu": {"model": "Skylake-Client", "features": ["vmx"]}}})
    assert change(View(vm("Always"), running), NOW)["guestABI"] == known
    assert "guestABI" not in change(View(vm("Always"), vmi("Running")), NOW)


def test_a_vm_that_fails_to_start_is_in_a_crash_loop_between_starts() -> None:
    assert printable(View(vm("Always"), None), failing=True) == "CrashLoopBackOff"
    assert printable(View(vm("Always"), vmi("Failed")), failing=True) == "CrashLoopBackOff"
    assert printable(View(vm("Always"), vmi("Scheduling")), failing=True) == "Starting"


def test_a_vm_that_never_ran_says_little() -> None:
    assert change(View(vm("Halted"), None), NOW) == {
        "printableStatus": "Stopped",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "VMINotExists",
                "message": "VMI does not exist",
                "lastTransitionTime": "2027-01-15T08:00:00Z",
            }
        ],
    }


def test_a_running_vm_tells_what_its_instance_tells() -> None:
    told = [condition("Ready", "True"), condition("LiveMigratable", "True")]
    running = vmi("Running", conditions=told, annotations={"kubevirt.io/vm-generation": "1"})
    status = change(View(vm("Always", generation=2), running), NOW)
    assert status == {
        "created": True,
        "ready": True,
        "runStrategy": "Always",
        "printableStatus": "Running",
        "observedGeneration": 1,
        "desiredGeneration": 2,
        "conditions": told,
    }


def test_nothing_is_said_twice() -> None:
    running = vmi("Running", conditions=[condition("Ready", "True")], annotations={"kubevirt.io/vm-generation": "1"})
    machine = vm("Always")
    status = change(View(machine, running), NOW)
    assert change(View(vm("Always", status=status), running), NOW + 60) == {}


def test_what_an_instance_told_goes_with_it() -> None:
    told = [condition("Ready", "True"), condition("Paused", "True")]
    status = change(View(vm("Manual", status={"created": True, "ready": True, "conditions": told}), None), NOW)
    assert status["created"] is status["ready"] is None
    assert [c["type"] for c in status["conditions"]] == ["Ready"]


def test_trouble_and_changes_are_conditions_until_they_are_over() -> None:
    view = View(vm("Always"), vmi("Running"), (), Trouble("FailedCreate", "no room"), ("domain.cpu.cores",))
    told = change(view, NOW)["conditions"]
    failure, restart = find(told, "Failure"), find(told, "RestartRequired")
    assert failure and (failure["status"], failure["message"]) == ("True", "no room")
    assert restart and restart["message"].endswith("in the template spec: domain.cpu.cores")
    after = change(View(vm("Always", status={"conditions": told}), vmi("Running")), NOW)["conditions"]
    assert find(after, "Failure") is find(after, "RestartRequired") is None


def test_requests_that_are_done_go_and_others_stay() -> None:
    done = change(View(vm("Manual", stop("earlier"), START), vmi("Running")), NOW)
    assert done["stateChangeRequests"] == [START]
    assert change(View(vm("Manual", stop()), None), NOW)["stateChangeRequests"] is None
    assert "stateChangeRequests" not in change(View(vm("Manual", stop()), vmi("Running")), NOW)


def test_failures_are_forgotten_when_a_guest_runs() -> None:
    ran = vmi("Running", through=("Running",))
    assert change(View(vm("Always", status=failures(2)), ran), NOW)["startFailure"] is None


def test_of_a_vm_that_was_never_started_no_strategy_is_told() -> None:
    assert "runStrategy" not in change(View(vm("RerunOnFailure"), None), NOW)
    assert change(View(vm("Manual", status={"runStrategy": "Always"}), None), NOW)["runStrategy"] == "Manual"
