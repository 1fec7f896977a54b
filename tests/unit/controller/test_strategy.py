"""When a VM is started and stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.objects import NOW, START, THEN, VMI_UID, stop, vm, vmi
from virtfleet.api import times
from virtfleet.controller import strategy
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm
from virtfleet.controller.strategy import Act, decide

GOING = vmi("Running", deleting=True)
STOP_ANY = {"action": "Stop"}
ASKED_TO_START = {"action": "Start", "data": {"paused": "true", "generation": "1"}}


@pytest.mark.parametrize(
    ("machine", "instance", "act"),
    [
        (vm("Always"), None, Act.START),
        (vm("Always"), vmi("Running"), Act.NOTHING),
        (vm("Always"), vmi("Succeeded"), Act.STOP),
        (vm("Always"), vmi("Failed"), Act.STOP),
        (vm("Always"), vmi("Failed", deleting=True), Act.NOTHING),
        (vm("Always", stop()), vmi("Running"), Act.STOP),
        (vm("Always", stop("another")), vmi("Running"), Act.NOTHING),
        (vm("Always", stop(), START), GOING, Act.NOTHING),
        (vm("Halted"), None, Act.NOTHING),
        (vm("Halted"), vmi("Running"), Act.STOP),
        (vm("Halted"), GOING, Act.NOTHING),
        (vm("Halted", ASKED_TO_START), None, Act.SWITCH_ON),
        (vm("Halted", ASKED_TO_START, generation=2), None, Act.NOTHING),  # somebody has halted it again
        (vm("Halted", START), None, Act.NOTHING),  # the second half of a restart, from before it was halted
        (vm("Halted", stop(), START), vmi("Running"), Act.STOP),
        (vm("Manual"), None, Act.NOTHING),
        (vm("Manual", START), None, Act.START),
        (vm("Manual"), vmi("Running"), Act.NOTHING),
        (vm("Manual"), vmi("Failed"), Act.NOTHING),
        (vm("Manual", stop()), vmi("Running"), Act.STOP),
        (vm("Manual", stop(), START), vmi("Running"), Act.STOP),
        (vm("Manual", STOP_ANY), vmi("Running"), Act.STOP),
        (vm("Always", STOP_ANY), None, Act.NOTHING),  # the request goes first, lest it hits the next instance
        (vm("RerunOnFailure", STOP_ANY), vmi("Failed"), Act.STOP),
        (vm("Once"), None, Act.START),
        (vm("Once"), vmi("Succeeded"), Act.NOTHING),
        (vm("Once"), vmi("Failed"), Act.NOTHING),
        (vm("Once", STOP_ANY), vmi("Running"), Act.STOP),  # asked for under another strategy
        (vm("RerunOnFailure"), None, Act.START),
        (vm("RerunOnFailure", status={"runStrategy": "RerunOnFailure"}), None, Act.NOTHING),
        (vm("RerunOnFailure", START, status={"runStrategy": "RerunOnFailure"}), None, Act.START),
        (vm("RerunOnFailure", status={"runStrategy": "Manual"}), None, Act.START),
        (vm("RerunOnFailure"), vmi("Running"), Act.NOTHING),
        (vm("RerunOnFailure"), vmi("Succeeded"), Act.STOP),
        (vm("RerunOnFailure"), vmi("Failed"), Act.RERUN),
        (vm("RerunOnFailure", START), vmi("Failed"), Act.STOP),  # asked for already, before we were killed
        (vm("RerunOnFailure", stop()), vmi("Failed"), Act.STOP),
        (vm("RerunOnFailure", stop()), vmi("Running"), Act.STOP),
        (vm("RerunOnFailure"), vmi("Failed", deleting=True), Act.NOTHING),
        (vm(spec={"running": True}), None, Act.START),
        (vm(spec={"running": False}), vmi("Running"), Act.STOP),
        (vm(spec={}), None, Act.NOTHING),
        (vm("WaitAsReceiver"), None, Act.NOTHING),
    ],
)
def test_what_is_done(machine: Vm, instance: Instance | None, act: Act) -> None:
    assert decide(machine, instance, NOW).act is act


@pytest.mark.parametrize(
    ("requests", "instance", "left"),
    [
        ([stop()], vmi("Running"), [stop()]),
        ([stop()], GOING, [stop()]),
        ([stop()], None, []),
        ([stop("another")], vmi("Running"), []),
        ([STOP_ANY], vmi("Running"), [STOP_ANY]),
        ([STOP_ANY], None, []),
        ([stop(), START], None, [START]),
        ([START], None, [START]),
        ([START], vmi("Pending"), []),
        ([START], vmi("Failed"), [START]),
        ([START], GOING, [START]),
        ([START, stop()], vmi("Pending"), [stop()]),
    ],
)
def test_the_first_request_goes_when_it_is_done(
    requests: list[dict[str, Any]], instance: Instance | None, left: list[dict[str, Any]]
) -> None:
    pending = strategy.pending_requests(vm("Manual", *requests), instance)
    assert [(r.action, r.uid) for r in pending] == [(r["action"], r.get("uid", "")) for r in left]


@pytest.mark.parametrize("instance", [None, GOING])
def test_all_that_waits_goes_when_a_vm_is_halted(instance: Instance | None) -> None:
    assert strategy.pending_requests(vm("Halted", stop(), START), instance) == []
    assert len(strategy.pending_requests(vm("Halted", ASKED_TO_START), instance)) == 1


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    ended = vmi("Failed", through=("Pending", "Scheduling"), deleting=True)
    assert strategy.start_failure(vm("Always", stop(), START), ended, NOW) is None


def test_a_start_may_ask_for_a_paused_guest() -> None:
    assert strategy.wants_start_paused(vm("Manual", {"action": "Start", "data": {"paused": "true"}}))
    assert not strategy.wants_start_paused(vm("Manual", START))


# --- back-off


def failures(count: int, uid: str = "earlier", until: str = THEN) -> dict[str, Any]:
    return {
        "startFailure": {"consecutiveFailCount": count, "lastFailedVMIUID": uid, "retryAfterTimestamp": until},
    }


def test_the_first_start_that_fails_is_counted() -> None:
    failure = strategy.start_failure(vm("Always"), vmi("Failed", through=("Pending", "Scheduling")), NOW)
    assert failure and (failure.consecutive_fail_count, failure.last_failed_vmi_uid) == (1, VMI_UID)
    assert 10 <= times.seconds(failure.retry_after_timestamp) - NOW <= 15


def test_a_failure_is_counted_once() -> None:
    machine = vm("Always", status=failures(3, VMI_UID))
    failure = strategy.start_failure(machine, vmi("Failed"), NOW)
    assert failure and failure.consecutive_fail_count == 3


def test_an_instance_that_ran_ends_the_row() -> None:
    ran = vmi("Failed", through=("Pending", "Running"))
    assert strategy.start_failure(vm("Always", status=failures(3)), ran, NOW) is None


def test_a_strategy_that_starts_nothing_by_itself_ends_the_row() -> None:
    assert strategy.start_failure(vm("Manual", status=failures(3)), None, NOW) is None


def test_a_start_waits_for_the_end_of_the_pause() -> None:
    machine = vm("Always", status=failures(2, until=times.timestamp(NOW + 25)))
    decision = decide(machine, None, NOW)
    assert (decision.act, decision.look_again) == (Act.NOTHING, 25.0)
    assert decide(machine, None, NOW + 26).act is Act.START


def test_a_request_by_hand_does_not_wait() -> None:
    assert decide(vm("Manual", START, status=failures(2, until=times.timestamp(NOW + 25))), None, NOW).act is Act.START


@given(st.integers(1, 1000))
def test_pauses_grow_and_have_an_end(count: int) -> None:
    assert min(10 * count * count, strategy.LONGEST_PAUSE) <= strategy.pause_after(count) <= strategy.LONGEST_PAUSE
