"""Where a migration goes next, by what is known of its VMI and Pods. Pure.

Pending → Scheduling (the target Pod exists) → Scheduled (it runs) → PreparingTarget (the VMI is handed over to both
handlers) → TargetReady (the source may send) → Running → Succeeded or Failed.

Up to the hand-over nobody but the controller knows of the migration, and it fails by the controller's word. From then
on the handlers say in the VMI's status what becomes of it. The controller ends it in their place only where that
cannot cost the guest: before the source can have begun to send, or when one side has certainly ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from virtfleet.api import conditions, names, times
from virtfleet.api.migration import VirtualMachineInstanceMigrationState as State
from virtfleet.api.migration import in_both_words, migration_failure
from virtfleet.api.names import MigrationCondition, MigrationPhase, VMICondition
from virtfleet.controller import lifecycle
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration.records import Migration
from virtfleet.controller.records.instance import Instance
from virtfleet.kube.resource import Obj

# Seconds that a step may take. For a Pod they are KubeVirt's.
UNSCHEDULABLE, NOT_RUNNING = 300.0, 900.0
PREPARATION, BEGIN = 120.0, 60.0
UNHEARD = 120.0  # for a source to answer that it has ended what it may have begun
SOURCE_LOST = 120.0  # more than handlers take to agree on who has the guest
_LONGEST = 86400.0
_SOURCE = 5.0  # between looks at the source of a guest that waits on the target
_SOON = 0.5  # a deadline may pass between two looks at the clock


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the next step of a migration depends on."""

    migration: Migration
    vmi: Instance | None
    target: LauncherPod | None = None
    """The Pod that was made for it."""
    source: LauncherPod | None = None
    """The Pod in which the VM runs."""
    source_lost_for: float = 0.0
    """Seconds since the VMI has had no Pod where it runs."""
    source_out_of_service: bool = False
    """Whether an administrator says that nothing runs on its node any more."""

    @property
    def state(self) -> State | None:
        """What the VMI says of this migration; nothing before the hand-over."""
        state = self.vmi.status.migration_state if self.vmi else None
        return state if state and state.migration_uid == self.migration.uid else None

    @property
    def under_way(self) -> State | None:
        """The same, where it has not ended."""
        state = self.vmi.open_migration if self.vmi and not self.vmi.final else None
        return state if state and state.migration_uid == self.migration.uid else None


def next_phase(at: Situation, now: float) -> tuple[str, str]:
    """The phase, and why where it is a failure."""
    if at.migration.final:
        return at.migration.phase, ""
    if at.state:
        return _handed_over(at, at.state)
    if why := _obstacle(at):
        return MigrationPhase.FAILED, why
    if at.target is None and not at.migration.begun:
        return MigrationPhase.PENDING, ""
    return _of_the_pod(at, now)


def _handed_over(at: Situation, state: State) -> tuple[str, str]:
    if state.failed:
        why = state.failure_reason or "the migration failed"
        late = state.abort_requested and not state.start_timestamp and not at.migration.deleting
        return MigrationPhase.FAILED, f"{_late(state)}: {why}" if late else why
    if state.completed or (at.vmi and at.vmi.status.node_name == state.target_node):
        return MigrationPhase.SUCCEEDED, ""
    if at.vmi is None or at.vmi.final or state.end_timestamp:
        return MigrationPhase.FAILED, "the VMI ended while it migrated"
    if state.start_timestamp:
        return MigrationPhase.RUNNING, ""
    return MigrationPhase.TARGET_READY if state.target_node_address else MigrationPhase.PREPARING_TARGET, ""


def _obstacle(at: Situation) -> str:
    """Why a migration that was not handed over cannot be."""
    migration, vmi = at.migration, at.vmi
    if migration.deleting:
        return "the migration was cancelled"
    if vmi is None or vmi.deleting:
        return f"VMI {migration.spec.vmi_name} does not exist any more"
    if vmi.final:
        return f"VMI {vmi.name} has ended"
    if migration.spec.send_to is not None or migration.spec.receive is not None:
        return "VirtFleet does not move VMs between clusters; leave out sendTo and receive"
    fixed = conditions.find(vmi.status.conditions, VMICondition.LIVE_MIGRATABLE)
    if fixed and fixed["status"] == "False":
        return f"the VMI cannot migrate, {fixed.get('reason') or ''}: {fixed.get('message') or ''}"
    return ""


def _of_the_pod(at: Situation, now: float) -> tuple[str, str]:
    """Before the hand-over, what becomes of the migration is what becomes of its Pod."""
    pod, failed = at.target, MigrationPhase.FAILED
    if pod is None:
        return failed, "the target pod is gone"
    if pod.going_down:
        return failed, f"target pod {pod.name} ended: {_said(pod)}"
    if at.vmi and pod.node and pod.node == at.vmi.status.node_name:
        return failed, f"target pod {pod.name} is on node {pod.node}, where the VM runs already"
    if pod.launched:
        return MigrationPhase.SCHEDULED, ""
    for left, why in _pod_deadlines(at.migration, pod, now):
        if left <= 0:
            return failed, why
    return MigrationPhase.SCHEDULING, ""


def unplaced(at: Situation) -> str:
    """What keeps the target Pod from every node so far, in the scheduler's words; nothing where nothing does."""
    if at.target is None or (why := at.target.unscheduled) is None:
        return ""
    return f"No node takes target pod {at.target.name}: {why.get('message') or 'no reason was given'}"


def _pod_deadlines(migration: Migration, pod: LauncherPod, now: float) -> Iterator[tuple[float, str]]:
    """Seconds that are left for a target Pod to run, and what is wrong with it then."""
    age = now - times.seconds(pod.metadata.creation_timestamp)
    marks = migration.metadata.annotations
    if why := pod.unscheduled:
        limit = _seconds(marks.unschedulable_timeout, UNSCHEDULABLE)
        yield limit - age, f"no node took target pod {pod.name} within {limit:.0f} s: {why.get('message') or ''}"
    limit = _seconds(marks.pending_timeout, NOT_RUNNING)
    trouble = lifecycle.container_trouble(pod)
    said = f": {trouble.reason}: {trouble.message}" if trouble else ""
    yield limit - age, f"target pod {pod.name} did not run within {limit:.0f} s{said}"


def _seconds(text: str, otherwise: float) -> float:
    """An annotation is whatever somebody wrote."""
    return min(float(text), _LONGEST) if text.isdecimal() and len(text) < 9 else otherwise


def _said(pod: LauncherPod) -> str:
    return pod.status.message or pod.status.reason or ("it was deleted" if pod.deleting else "its launcher stopped")


def why_ended(at: Situation, now: float) -> str:
    """Why the controller has to end a migration that was handed over; empty where the handlers go on with it."""
    state, pod = at.under_way, at.target
    if state is None or (at.vmi and at.vmi.status.node_name == state.target_node):
        return ""
    if pod is None or pod.ended:
        return f"target pod {state.target_pod} {'is gone' if pod is None else f'ended: {_said(pod)}'}"
    if at.source_lost_for > SOURCE_LOST:
        return f"the VM's pod {state.source_pod} is gone, and the guest has not come to {state.target_node}"
    if state.start_timestamp:
        return ""
    if state.target_node_address:
        # The source may have begun and be about to say so. Where nothing is heard, its Pod shows where the guest is.
        here = at.source is not None and not at.source.going_down
        return f"{_late(state)}, nor answer" if here and _asked_for(at, now) > UNHEARD else ""
    if at.migration.deleting:
        return "the migration was cancelled"
    late = _age(at, now) > PREPARATION
    return f"node {state.target_node} did not prepare the target pod within {PREPARATION:.0f} s" if late else ""


def source_ended(at: Situation) -> bool:
    """Whether the target is to be told that nothing of the guest is alive on the source, whose handler does not say so.

    That a Pod is gone, or is said to have failed, proves nothing: whoever cannot reach a node writes that too. Only the
    kubelet of the node writes that a container has ended, and only an administrator that a node is out of service.
    """
    state = at.under_way
    if state is None or not state.target_node_domain_detected or state.source_end_timestamp:
        return False
    return at.source_out_of_service or (at.source is not None and at.source.launcher_ended)


def aborted(at: Situation, now: float) -> bool:
    """Whether the source is to be asked to end a migration that it has begun, or may have."""
    state = at.under_way
    if state is None or state.abort_requested or not state.target_node_address:
        return False
    return at.migration.deleting or (not state.start_timestamp and _age(at, now) > BEGIN)


def _asked_for(at: Situation, now: float) -> float:
    """Seconds since the source was asked to end it."""
    asked = conditions.find(at.migration.status.conditions, MigrationCondition.ABORT_REQUESTED)
    return now - times.seconds(asked["lastTransitionTime"]) if asked else 0.0


def _late(state: State) -> str:
    return f"node {state.source_node} did not begin to send the guest within {BEGIN:.0f} s"


def _age(at: Situation, now: float) -> float:
    """Seconds in the present phase, as far as it is one of those that have a limit."""
    limited = (MigrationPhase.PREPARING_TARGET, MigrationPhase.TARGET_READY)
    return now - times.seconds(at.migration.since) if at.migration.phase in limited else 0.0


def look_again(at: Situation, phase: str, now: float) -> float | None:
    """Seconds until a deadline passes of which no change of an object tells."""
    left: list[float] = []
    if phase == MigrationPhase.SCHEDULING and at.target:
        left = [seconds for seconds, _ in _pod_deadlines(at.migration, at.target, now)]
    elif state := at.under_way:
        if state.abort_requested:
            left.append(UNHEARD - _asked_for(at, now))
        elif not state.start_timestamp:
            left.append((BEGIN if state.target_node_address else PREPARATION) - _age(at, now))
        if at.source is None:
            left.append(SOURCE_LOST - at.source_lost_for)
        if state.target_node_domain_detected and not state.source_end_timestamp:
            left.append(_SOURCE)
    return max(_SOON, min(left)) if left else None


# --- what is written


def status(at: Situation, phase: str, reason: str, now: float) -> Obj:
    """What of the migration's status changes."""
    known = at.migration.status
    change: Obj = {}
    if phase != known.phase:
        entered = {"phase": phase, "phaseTransitionTimestamp": times.timestamp(now)}
        before = msgspec.to_builtins(known.phase_transition_timestamps)
        change |= {"phase": phase, "phaseTransitionTimestamps": [*before, entered]}
    state = at.state or known.migration_state
    if phase == MigrationPhase.FAILED and reason:
        state = msgspec.structs.replace(state or State(), failed=True, failure_reason=reason)
    if state and state != known.migration_state:
        change["migrationState"] = msgspec.to_builtins(state)
    aborted = known.conditions
    if at.under_way and at.under_way.abort_requested:
        aborted = conditions.put(aborted, MigrationCondition.ABORT_REQUESTED, "True", now)
    if phase not in ("", MigrationPhase.PENDING):
        aborted = conditions.drop(aborted, MigrationCondition.REJECTED_BY_QUOTA)
    if aborted != known.conditions:
        change["conditions"] = aborted
    return change


def ended_state(at: Situation, why: str, now: float) -> Obj:
    """The end of a handed-over migration, as the controller writes it into the VMI's status."""
    end = migration_failure(why, now)
    return {**end, "abortRequested": True, "abortStatus": "Succeeded"} if at.migration.deleting else end


def hand_over(
    vmi: Obj, move: Migration, source: LauncherPod, target: LauncherPod, how: Obj, more: Mapping[str, str]
) -> Obj:
    """The one write by which both handlers learn of the migration. Nothing of an earlier one stays."""
    before = (vmi.get("status") or {}).get("migrationState") or {}
    state = {
        "migrationUid": move.uid,
        "sourceNode": source.node,
        "sourcePod": source.name,
        "targetNode": target.node,
        "targetPod": target.name,
        "sourceState": {**dict.fromkeys(before.get("sourceState") or ()), **_side(vmi, move, source)},
        "targetState": {**dict.fromkeys(before.get("targetState") or ()), **_side(vmi, move, target)},
        "migrationConfiguration": {**dict.fromkeys(before.get("migrationConfiguration") or ()), **how},
        **more,
    }
    return {
        "metadata": {"labels": {names.MIGRATION_TARGET_NODE: target.node}},
        "status": {
            "migrationState": {**dict.fromkeys(before), **in_both_words(state)},
            "activePods": {target.uid: target.node},
        },
    }


def _side(vmi: Obj, move: Migration, pod: LauncherPod) -> Obj:
    """The same once more, in the words of later versions of KubeVirt."""
    meta = vmi["metadata"]
    names_of_domain = {"domainNamespace": meta["namespace"], "domainName": meta["name"]}
    place = {"node": pod.node, "pod": pod.name, "migrationUID": move.uid, "virtualMachineInstanceUID": meta["uid"]}
    return {**place, **names_of_domain}
