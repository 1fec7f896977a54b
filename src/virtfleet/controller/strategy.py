"""When a VM runs: its run strategy, the requests that wait, and how its last instance ended. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from virtfleet.api import times
from virtfleet.api.names import Phase
from virtfleet.api.vm import VirtualMachineStartFailure as StartFailure
from virtfleet.api.vm import VirtualMachineStateChangeRequest as Request
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm

START, STOP = "Start", "Stop"
PAUSED = "paused"  # of a start request's data: start the guest paused
GENERATION = "generation"  # of a start request's data: the VM's, when a halted VM was asked to start
RESTARTING = ("Always", "RerunOnFailure", "Once")  # strategies under which starts that fail are counted

FIRST_PAUSE = 10
LONGEST_PAUSE = 300


class Act(enum.Enum):
    """What is to be done for a VM now."""

    NOTHING = "nothing"
    START = "make an instance"
    STOP = "delete the instance"
    RERUN = "ask for another start, then delete the instance"
    RESTART = "ask for a stop and a start, then delete the instance"
    SWITCH_ON = "change the run strategy to Always"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and after how many seconds to look again."""

    act: Act
    look_again: float | None = None


_NOTHING = Decision(Act.NOTHING)


def decide(vm: Vm, vmi: Instance | None, now: float) -> Decision:
    """What a VM that is not being deleted needs."""
    if vmi is not None:
        return Decision(_with_instance(vm, vmi))
    if vm.strategy == "Halted":
        return Decision(Act.SWITCH_ON) if wants_start(vm) else _NOTHING
    if is_to_stop_any(vm):
        return _NOTHING  # there is none: the request goes, and then the strategy is looked at again
    if not _is_to_start(vm) or vm.copying:  # its claims may hold half of its data
        return _NOTHING
    left = pause_left(vm, now) if vm.strategy in RESTARTING else 0
    return Decision(Act.NOTHING, left) if left > 0 else Decision(Act.START)


def _is_to_start(vm: Vm) -> bool:
    if vm.strategy in ("Always", "Once"):
        return True
    if vm.strategy == "RerunOnFailure":
        # The status names the strategy under which an instance was last seen: a change to this one is a start.
        return wants_start(vm) or vm.status.run_strategy != vm.strategy
    return vm.strategy == "Manual" and wants_start(vm)


def _with_instance(vm: Vm, vmi: Instance) -> Act:
    if vmi.deleting:
        return Act.NOTHING
    asked = wants_stop(vm, vmi)
    match vm.strategy:
        case "Halted":
            return Act.STOP
        case "Always" if asked or vmi.final:
            return Act.STOP
        case "RerunOnFailure" if vmi.phase == Phase.FAILED and not asked:
            return Act.STOP if wants_start(vm) else Act.RERUN
        case "RerunOnFailure" if asked or vmi.final:
            return Act.STOP
        case "Manual" | "Once" if asked:
            return Act.STOP
    return Act.NOTHING


# --- requests: only the first one counts, until it is done


def _first(vm: Vm, action: str = "") -> Request | None:
    """The request that counts, where it is of this action.

    A halted VM was told to stop by whoever changed it last, so that all that waits from before is void: the second half
    of a restart, for instance, must not start it again.
    """
    first = next(iter(vm.status.state_change_requests), None)
    if first and vm.strategy == "Halted" and first.data.get(GENERATION) != str(vm.metadata.generation):
        return None
    return first if first and action in ("", first.action) else None


def wants_start(vm: Vm) -> bool:
    return _first(vm, START) is not None


def wants_start_paused(vm: Vm) -> bool:
    start = _first(vm, START)
    return start is not None and start.data.get(PAUSED) == "true"


def wants_stop(vm: Vm, vmi: Instance) -> bool:
    """A stop names the instance that it means, so that it cannot hit the next one; one that names none means any."""
    stop = _first(vm, STOP)
    return stop is not None and stop.uid in ("", vmi.uid)


def is_to_stop_any(vm: Vm) -> bool:
    """Whichever instance there is, or was about to be made, is not to run."""
    stop = _first(vm, STOP)
    return stop is not None and not stop.uid


def pending_requests(vm: Vm, vmi: Instance | None) -> list[Request]:
    """The requests without a first one that is done; none where they are void."""
    first = _first(vm)
    if first is None:
        return []
    stopped = first.action == STOP and (vmi is None or not wants_stop(vm, vmi))
    started = first.action == START and vmi is not None and not vmi.deleting and not vmi.final
    return vm.status.state_change_requests[1:] if stopped or started else vm.status.state_change_requests


# --- back-off


def pause_left(vm: Vm, now: float) -> float:
    failure = vm.status.start_failure
    return times.seconds(failure.retry_after_timestamp) - now if failure and failure.retry_after_timestamp else 0.0


def pause_after(failures: int) -> int:
    """Seconds until a VM is started again that failed so many times in a row; spread, so that VMs part ways."""
    pause = FIRST_PAUSE * max(failures, 1) ** 2
    return min(pause + random.randrange(pause // 2 + 1), LONGEST_PAUSE)


def start_failure(vm: Vm, vmi: Instance | None, now: float) -> StartFailure | None:
    """The failures in a row: instances that ended before they ran, and that nobody had asked to.

    One that ran, or another strategy, ends the row.
    """
    known = vm.status.start_failure
    if vm.strategy not in RESTARTING or (vmi is not None and vmi.ran):
        return None
    if vmi is None or not vmi.final or wants_stop(vm, vmi) or (known and known.last_failed_vmi_uid == vmi.uid):
        return known
    count = 1 + ((known and known.consecutive_fail_count) or 0)
    return StartFailure(count, vmi.uid, times.timestamp(now + pause_after(count)))
