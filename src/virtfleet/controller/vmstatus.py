"""What a VM's status says, from the VM and its instance. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from virtfleet.api import conditions
from virtfleet.api.conditions import Condition
from virtfleet.api.names import Phase, PrintableStatus, VMCondition, VMICondition
from virtfleet.controller import lifecycle, strategy
from virtfleet.controller.datavolumes.records import DataVolume
from virtfleet.controller.launcherpod import POD_SCHEDULED
from virtfleet.controller.lifecycle import Trouble
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm
from virtfleet.domain import abi
from virtfleet.kube.resource import Obj

# Conditions of a VM that are not its instance's.
_OWN = (VMCondition.READY, VMCondition.FAILURE, VMCondition.RESTART_REQUIRED, VMCondition.MANUAL_RECOVERY)
_ENDED = "VolumesChangeInterrupted"
_RECOVER = (
    "the VM ended while the data of its volumes was being copied to other claims, and is not started on half of it;"
    " put the old claims back into the template, or set updateVolumesStrategy to Replacement to use the new ones"
)
_NO_INSTANCE = ("VMINotExists", "VMI does not exist")
_NO_CONDITION = ("VMIConditionMissing", "VMI is missing the Ready condition")
_NAMED = 5  # changed fields that are named


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the status depends on."""

    vm: Vm
    vmi: Instance | None
    claims: tuple[Claim, ...] = ()
    """The claims of the VM's volumes that exist."""
    trouble: Trouble | None = None
    """What went wrong when the VM was started or stopped."""
    changes: tuple[str, ...] = ()
    """Fields of the template that were changed and wait for a restart."""
    unfilled: tuple[DataVolume, ...] = ()
    """DataVolumes of its volumes that are not filled yet."""
    obstacle: str = ""
    """Why the data of its volumes does not follow the template to other claims."""


def change(view: View, now: float) -> Obj:
    """What is to be changed in the status; empty where nothing is."""
    old = view.vm.object().get("status") or {}
    wanted = _wanted(view, old, now)
    return {key: value for key, value in wanted.items() if value != old.get(key)}


def _wanted(view: View, old: Obj, now: float) -> Obj:
    """The fields that the controller writes; None for those that should not be there."""
    vm, vmi = view.vm, view.vmi
    failure = strategy.start_failure(vm, vmi, now)
    requests = strategy.pending_requests(vm, vmi)
    # Of a VM that was never started no strategy is told: that is how a first start is known. One that was told to stop
    # before it started has heard its strategy too, which would start it otherwise.
    heard = vmi or vm.status.run_strategy or strategy.is_to_stop_any(vm)
    strategy_in_force = vm.strategy if heard else None
    wanted = {
        "created": vmi is not None or None,
        "ready": (vmi is not None and conditions.holds(vmi.status.conditions, VMICondition.READY)) or None,
        "runStrategy": strategy_in_force,
        "startFailure": msgspec.to_builtins(failure) if failure else None,
        "conditions": _conditions(view, old.get("conditions") or [], now),
        "printableStatus": printable(view, failure is not None),
    }
    if len(requests) != len(vm.status.state_change_requests):
        wanted["stateChangeRequests"] = old["stateChangeRequests"][-len(requests) :] if requests else None
    if vmi and vmi.metadata.annotations.vm_generation.isdecimal():
        wanted["desiredGeneration"] = vm.metadata.generation
        wanted["observedGeneration"] = int(vmi.metadata.annotations.vm_generation)
    if vmi and vmi.status.guest_abi:
        wanted["guestABI"] = abi.written(vmi.status.guest_abi)
    return wanted


def _conditions(view: View, old: list[Condition], now: float) -> list[Condition]:
    vmi = view.vmi
    reported = vmi.status.conditions if vmi else []
    wanted = [c for c in old if c.get("type") in _OWN]
    wanted += [c for c in reported if c.get("type") not in _OWN]
    if ready := conditions.find(reported, VMICondition.READY):
        wanted = [ready, *conditions.drop(wanted, VMCondition.READY)]
    else:
        reason, message = _NO_CONDITION if vmi else _NO_INSTANCE
        wanted = conditions.put(wanted, VMCondition.READY, "False", now, reason=reason, message=message)
    failure = (view.trouble.reason, view.trouble.message) if view.trouble else None
    wanted = conditions.state(wanted, VMCondition.FAILURE, now, failure)
    interrupted = view.vm.copying and (vmi is None or vmi.final)
    wanted = conditions.state(wanted, VMCondition.MANUAL_RECOVERY, now, (_ENDED, _RECOVER) if interrupted else None)
    named = ", ".join(view.changes[:_NAMED]) + (" and others" if len(view.changes) > _NAMED else "")
    message = view.obstacle or f"a non-live-updatable field was changed in the template spec: {named}"
    kind = VMCondition.RESTART_REQUIRED
    return conditions.state(wanted, kind, now, (kind, message) if view.changes else None)


# --- the one word that people see


def printable(view: View, failing: bool) -> str:
    """The first word that fits. Several may, and then the first one matters most."""
    return next(word for word, fits in _WORDS if fits(view, failing))


def _is(fits: Callable[[Instance], bool]) -> Callable[[View, bool], bool]:
    return lambda view, _: view.vmi is not None and fits(view.vmi)


def _phase(*phases: str) -> Callable[[View, bool], bool]:
    return _is(lambda vmi: vmi.phase in phases)


def _condition(kind: str, status: str, reason: str = "") -> Callable[[View, bool], bool]:
    return _is(lambda vmi: conditions.holds(vmi.status.conditions, kind, status, reason))


def _is_over(view: View, failing: bool) -> bool:
    return view.vmi is None or view.vmi.final


_WORDS: tuple[tuple[str, Callable[[View, bool], bool]], ...] = (
    (PrintableStatus.TERMINATING, lambda view, _: view.vm.deleting),
    (PrintableStatus.STOPPING, _is(lambda vmi: vmi.deleting and not vmi.final)),
    (PrintableStatus.MIGRATING, _is(lambda vmi: vmi.migrating)),
    (PrintableStatus.PAUSED, _is(lambda vmi: vmi.phase == Phase.RUNNING and vmi.paused)),
    (PrintableStatus.RUNNING, _phase(Phase.RUNNING)),
    (PrintableStatus.PVC_NOT_FOUND, _condition(VMICondition.SYNCHRONIZED, "False", lifecycle.CLAIM_NOT_FOUND)),
    (PrintableStatus.DATA_VOLUME_ERROR, lambda view, _: any(volume.failing for volume in view.unfilled)),
    (PrintableStatus.UNSCHEDULABLE, _condition(POD_SCHEDULED, "False", lifecycle.UNSCHEDULABLE)),
    (PrintableStatus.UNSCHEDULABLE, _condition(POD_SCHEDULED, "False", lifecycle.NO_SCHEDULER)),
    (PrintableStatus.PROVISIONING, lambda view, _: bool(view.unfilled)),
    (
        PrintableStatus.WAITING_FOR_VOLUME_BINDING,
        lambda view, failing: not _is_over(view, failing) and not all(claim.bound for claim in view.claims),
    ),
    (PrintableStatus.ERR_IMAGE_PULL, _condition(VMICondition.SYNCHRONIZED, "False", "ErrImagePull")),
    (PrintableStatus.IMAGE_PULL_BACK_OFF, _condition(VMICondition.SYNCHRONIZED, "False", "ImagePullBackOff")),
    (PrintableStatus.STARTING, _phase("", Phase.PENDING, Phase.SCHEDULING, Phase.SCHEDULED)),
    (PrintableStatus.CRASH_LOOP, lambda view, failing: failing and _is_over(view, failing)),
    (PrintableStatus.STOPPED, _is_over),
    (PrintableStatus.UNKNOWN, lambda view, _: True),
)
