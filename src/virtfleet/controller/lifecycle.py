"""Where a VMI goes next, by what is known of its Pods. Pure.

Pending → Scheduling (its Pod exists) → Scheduled (the launcher waits: the VMI is handed over to the node's handler).
From there on phases are the handler's, and the controller only says what a handler cannot: that the Pod is lost.

All that changes goes into one patch. To be thrifty, nothing is written between Scheduling and Scheduled that helps
nobody: which Pod it is and where it runs is told with the hand-over. Ready is the Pod's readiness once the guest runs;
a handler that says so together with Running, of a VMI without a readiness probe, spares the write that would follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from virtfleet.api import conditions, hotplug, names, times
from virtfleet.api.conditions import Condition
from virtfleet.api.names import FINAL, STUCK, Phase, VMICondition
from virtfleet.controller import advice
from virtfleet.controller.launcherpod import POD_SCHEDULED, LauncherPod
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.guest import Volume
from virtfleet.controller.records.instance import Instance
from virtfleet.kube.resource import Obj
from virtfleet.pods.launcher import COMPUTE

UNSCHEDULABLE = "Unschedulable"
NO_SCHEDULER = "NoScheduler"
OVERLOOKED_AFTER = 60.0  # seconds in which a scheduler that is there looks at a Pod
FAILED_CREATE = "FailedCreate"
CLAIM_NOT_FOUND = "FailedPvcNotFound"
VOLUMES_NOT_READY, VOLUMES_READY = "NotAllDVsReady", "AllDVsReady"
POD_LOST = "PodLost"
POD_FAILED = "PodFailed"
SHARING_ENDED = "FilesystemContainerEnded"
NO_IMAGE_VOLUMES = "ImageVolumesNotSupported"
_EVICTED_BY = "kubevirt"
GATE_CLOSED = "ReadinessGatesNotReady"  # of a Pod all of whose containers are ready


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a VMI does not get on, in one word and in words for its owner."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the next step of a VMI depends on."""

    vmi: Instance
    pods: tuple[LauncherPod, ...] = ()
    """Its Pods, without strays."""
    claims: Mapping[str, Claim] | None = None
    """The claims of its volumes, by the volumes' names."""
    trouble: Trouble | None = None
    """What went wrong when its Pod was made."""
    vm_is_gone: bool = False
    """The VM that it belongs to does not exist, or it belongs to none."""
    state: Claim | None = None
    """The claim in which firmware and TPM keep things."""
    cid: int | None = None
    """Its address on vsock, where it is to have one."""

    @property
    def pod(self) -> LauncherPod | None:
        return current_pod(self.vmi, self.pods)


def strays(vmi: Instance, pods: Iterable[LauncherPod]) -> list[LauncherPod]:
    """Pods that were made again after the VMI had gone on: by a controller that did not know yet.

    A Pod's name follows from the VMI's UID, so there is never a second one beside the first. But a controller whose
    view is old can make it anew when the first one is gone. The hand-over names the Pod that counts.
    """
    if not vmi.handed_over:
        return []
    return [pod for pod in pods if pod.uid not in vmi.status.active_pods and not pod.for_migration]


def current_pod(vmi: Instance, pods: Iterable[LauncherPod]) -> LauncherPod | None:
    """The Pod in which the VM runs or will run. While it migrates there are two.

    What is known of a Pod may be older than what is known of its VMI, whose word on where the Pod is counts then.
    """
    node = vmi.status.node_name
    if node:
        known = (pod for pod in pods if pod.uid in vmi.status.active_pods or not pod.for_migration)
        pods = [pod for pod in known if node in (vmi.status.active_pods.get(pod.uid), pod.node)]
    else:
        pods = [pod for pod in pods if not pod.for_migration]
    return max(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.name), default=None)


def on_its_way(vmi: Instance, pods: Iterable[LauncherPod]) -> bool:
    """Whether the guest may have left its Pod for one that lives. Only the handlers know who runs it then."""
    state = vmi.open_migration
    return state is not None and any(pod.name == state.target_pod and not pod.ended for pod in pods)


def next_phase(vmi: Instance, pod: LauncherPod | None, *, leaving: bool = False) -> tuple[str, str]:
    """The phase, and why in one word where it is a failure."""
    phase = vmi.phase or Phase.PENDING
    if vmi.unprocessed:
        if vmi.deleting:
            return phase if pod else Phase.FAILED, ""
        if pod and pod.launched:
            return Phase.SCHEDULED, ""
        return Phase.SCHEDULING if pod else phase, ""
    if phase in FINAL:
        return phase, ""
    if pod is None and leaving:
        return phase, ""  # the loss of what it left is none of the guest
    if pod is None:
        return Phase.FAILED, "" if vmi.deleting else POD_LOST  # a deletion takes the Pod away on purpose
    if phase == Phase.SCHEDULING and not vmi.deleting:
        if pod.launched:
            return Phase.SCHEDULED, ""
        if pod.going_down:
            return Phase.FAILED, pod.status.reason or POD_FAILED
    if phase == Phase.SCHEDULED and pod.failed:  # the handler may never have seen it
        return Phase.FAILED, pod.status.reason or POD_FAILED
    return phase, ""


def goes_without_saying(at: Situation) -> bool:
    """Whether all that there is to tell of a VMI is that it has a Pod, on its way, and so is not ready."""
    vmi, pod = at.vmi, at.pod
    if pod is None or pod.launched or pod.going_down or pod.deleting or not vmi.unprocessed or vmi.deleting:
        return False
    known, wanted = (
        conditions.drop(each, VMICondition.READY) for each in (vmi.status.conditions, _conditions(at, vmi.phase, 0.0))
    )
    return names.VMI_FINALIZER in vmi.metadata.finalizers and known == wanted


def change(at: Situation, now: float) -> Obj:
    """The patch that brings the VMI up to date; empty where it is."""
    vmi = at.vmi
    phase, reason = next_phase(vmi, at.pod, leaving=on_its_way(vmi, at.pods))
    status: Obj = {}
    metadata: Obj = {}
    if phase != vmi.phase:
        skipped = [Phase.SCHEDULING] if vmi.unprocessed and phase == Phase.SCHEDULED else []
        status |= entered(vmi, phase, reason, now, skipped)
    wanted = _conditions(at, phase, now)
    if wanted != vmi.status.conditions:
        status["conditions"] = wanted
    if phase not in (Phase.PENDING, Phase.SCHEDULING):
        status |= _recorded_pods(vmi, at.pods) | _moved(vmi, at.pod)
    if vmi.unprocessed and at.pod:
        metadata |= _marks(at.pod)
    elif at.pod and at.pod.for_migration and (pool := at.pod.metadata.labels.get(names.HANDLER_POOL, "")) != vmi.pool:
        metadata["labels"] = {names.HANDLER_POOL: pool or None}  # an update may take a VM to another pool
    if phase == Phase.SCHEDULED and not vmi.handed_over and at.pod:
        metadata["labels"] = {**metadata.get("labels", {}), names.NODE_NAME: at.pod.node}
        status |= _hand_over(at, at.pod)
    finalizers = _finalizers(at, phase)
    if finalizers != vmi.metadata.finalizers:
        metadata["finalizers"] = finalizers
    return _patch(vmi, metadata, status)


def _patch(vmi: Instance, metadata: Obj, status: Obj) -> Obj:
    if not metadata and not status:
        return {}
    # Conditions and finalizers are lists that others write too: the version keeps two writers apart.
    patch: Obj = {"metadata": {**metadata, "resourceVersion": vmi.metadata.resource_version, "uid": vmi.uid}}
    return {**patch, "status": status} if status else patch


def entered(vmi: Instance, phase: str, reason: str, now: float, skipped: Iterable[str] = ()) -> Obj:
    """The part of the status that says that a phase begins, and others before it that nobody was told of."""
    known = msgspec.to_builtins(vmi.status.phase_transition_timestamps)
    entries = [{"phase": each, "phaseTransitionTimestamp": times.timestamp(now)} for each in (*skipped, phase)]
    status = {"phase": phase, "phaseTransitionTimestamps": [*known, *entries]}
    return {**status, "reason": reason} if reason else status


def _recorded_pods(vmi: Instance, pods: Iterable[LauncherPod]) -> Obj:
    # The target of a migration is added by the hand-over, which is when handlers may know of it.
    active = {pod.uid: pod.node for pod in pods if pod.uid in vmi.status.active_pods or not pod.for_migration}
    if active == vmi.status.active_pods:
        return {}
    return {"activePods": {**dict.fromkeys(vmi.status.active_pods), **active}}  # null takes an entry away


def _moved(vmi: Instance, pod: LauncherPod | None) -> Obj:
    """The image in which a VM runs that has migrated."""
    if pod is None or not pod.for_migration or pod.image == vmi.status.launcher_container_image_version:
        return {}
    return {"launcherContainerImageVersion": pod.image}


def _marks(pod: LauncherPod) -> Obj:
    """Which pool and hypervisor the VMI runs on: what its Pod was made for, whatever the pools say later."""
    pool = pod.metadata.labels.get(names.HANDLER_POOL)
    marks: Obj = {"annotations": {names.LAUNCHER_HYPERVISOR: pod.hypervisor}} if pod.hypervisor else {}
    return {**marks, "labels": {names.HANDLER_POOL: pool}} if pool else marks


def _hand_over(at: Situation, pod: LauncherPod) -> Obj:
    claims, state = at.claims or {}, at.state
    status: Obj = {"nodeName": pod.node, "launcherContainerImageVersion": pod.image}
    if pod.status.qos_class:
        status["qosClass"] = pod.status.qos_class
    if at.cid is not None:
        status["VSOCKCID"] = at.cid
    if claims or state:
        # So that no handler needs to read claims. All volumes are named: what a status leaves out is not there yet.
        entries = [volume_status(volume, claims.get(volume.name)) for volume in at.vmi.spec.volumes]
        status["volumeStatus"] = [*entries, *([state_status(state)] if state else [])]
    return status


def state_status(claim: Claim) -> Obj:
    """The entry of the claim in which firmware and TPM keep things; it is no volume of the spec."""
    return {"name": names.STATE_VOLUME, "target": "", "persistentVolumeClaimInfo": claim_info(claim)}


def volume_status(volume: Volume, claim: Claim | None) -> Obj:
    """The first entry of a volume in the status."""
    entry: Obj = {"name": volume.name, "target": ""}
    if volume.plugged:
        entry |= {"phase": hotplug.PENDING, "hotplugVolume": {}}
    if claim is None:
        return entry
    return {**entry, "persistentVolumeClaimInfo": claim_info(claim)}


def claim_info(claim: Claim) -> Obj:
    """What a VMI's status says of a claim."""
    info: dict[str, Any] = {
        "claimName": claim.name,
        "accessModes": claim.spec.access_modes,
        "volumeMode": claim.spec.volume_mode,
        "capacity": claim.status.capacity,
        "requests": claim.spec.resources.get("requests") or {},
    }
    return {key: value for key, value in info.items() if value}


def _finalizers(at: Situation, phase: str) -> list[str]:
    """A VMI stays until its Pods are gone and its VM has seen how it ended."""
    finalizers = at.vmi.metadata.finalizers
    if phase not in FINAL:
        missing = [] if names.VMI_FINALIZER in finalizers or at.vmi.deleting else [names.VMI_FINALIZER]
        return [*finalizers, *missing]
    done = set() if at.pods else {names.VMI_FINALIZER}
    if at.vm_is_gone:
        done.add(names.VM_FINALIZER)
    return [finalizer for finalizer in finalizers if finalizer not in done]


# --- conditions


def _conditions(at: Situation, phase: str, now: float) -> list[Condition]:
    vmi, pod = at.vmi, at.pod
    if pod is None and phase == Phase.PENDING and not at.trouble:
        return vmi.status.conditions  # a new VMI, whose Pod comes at once
    wanted = _with_ready(vmi, pod, phase, now)
    if vmi.handed_over:
        return _with_eviction(wanted, vmi, now)  # the others are the handler's
    wanted = _with_placement(wanted, pod, at.trouble, now)
    trouble = at.trouble or container_trouble(pod)
    if trouble and trouble.reason == VOLUMES_NOT_READY:  # as it should be, for now
        kind, said = VMICondition.VOLUMES_READY, trouble.message
        wanted = conditions.put(wanted, kind, "False", now, reason=trouble.reason, message=said)
        return conditions.drop(wanted, VMICondition.SYNCHRONIZED)
    filled = at.trouble is None and any(volume.data_volume for volume in vmi.spec.volumes)
    if filled and (phase == Phase.SCHEDULED or conditions.find(wanted, VMICondition.VOLUMES_READY)):
        said = "All of the VMI's DVs are bound and ready"
        wanted = conditions.put(wanted, VMICondition.VOLUMES_READY, "True", now, reason=VOLUMES_READY, message=said)
    if trouble:
        kind = VMICondition.SYNCHRONIZED
        return conditions.put(wanted, kind, "False", now, reason=trouble.reason, message=trouble.message)
    return conditions.drop(wanted, VMICondition.SYNCHRONIZED)


def _with_ready(vmi: Instance, pod: LauncherPod | None, phase: str, now: float) -> list[Condition]:
    """Ready means that the guest runs, is not paused, and passes its probe, which only the Pod knows."""
    status, reason, message = "False", "", ""
    if pod is None:
        reason, message = "PodNotExists", "virt-launcher pod has not yet been scheduled"
        if vmi.final and conditions.holds(vmi.status.conditions, VMICondition.READY, "False"):
            return vmi.status.conditions  # why it ended is worth more than that it is gone
    elif pod.going_down:
        reason, message = "PodTerminating", "virt-launcher pod is terminating"
    elif phase != Phase.RUNNING:
        reason, message = "GuestNotRunning", "Guest VM is not reported as running"
    elif conditions.holds(vmi.status.conditions, VMICondition.PAUSED):
        reason, message = "Paused", "the virtual machine is paused"
    elif trouble := _deserted(pod):
        reason, message = trouble.reason, trouble.message
    elif ready := conditions.find(pod.status.conditions, "Ready"):
        status, reason, message = ready["status"], ready.get("reason") or "", ready.get("message") or ""
        if reason == GATE_CLOSED:  # ours, which opens for a guest that runs
            status, reason, message = "True", "", ""
    else:
        reason, message = "PodConditionMissing", "virt-launcher pod is missing the Ready condition"
    return conditions.put(vmi.status.conditions, VMICondition.READY, status, now, reason=reason, message=message)


def _with_eviction(wanted: list[Condition], vmi: Instance, now: float) -> list[Condition]:
    """Whether an eviction has asked for the VM to leave its node; said only as long as it is so."""
    kind, message = VMICondition.EVICTION_REQUESTED, f"the VM was asked to leave node {vmi.status.node_name}"
    return conditions.state(wanted, kind, now, (kind, message) if vmi.leaves and not vmi.final else None)


def eviction_mark(at: Situation) -> dict[str, str | None]:
    """What the descheduler is to read on the VM's Pod, where it says something else."""
    pod, mark = at.pod, _EVICTED_BY if at.vmi.leaves and not at.vmi.final else None
    if pod is None or (pod.metadata.annotations.eviction_in_progress or None) == mark:
        return {}
    return {names.EVICTION_IN_PROGRESS: mark}


def gate(at: Situation, now: float) -> Condition | None:
    """What the readiness gate of the VM's Pod is to say; None where it says so, or need not: it is closed at first."""
    pod = at.pod
    if pod is None or pod.going_down or at.vmi.phase != Phase.RUNNING:
        return None  # no Service leads to a guest that does not run
    if not any(g["conditionType"] == names.UNPAUSED for g in pod.spec.readiness_gates):
        return None
    words = ("False", "Paused", "the virtual machine is paused")
    if not at.vmi.paused:
        words = ("True", "NotPaused", "the virtual machine is not paused")
    status, reason, message = words
    present = pod.status.conditions
    wanted = conditions.put(present, names.UNPAUSED, status, now, reason=reason, message=message)
    return None if wanted is present else conditions.find(wanted, names.UNPAUSED)


def _with_placement(
    wanted: list[Condition], pod: LauncherPod | None, trouble: Trouble | None, now: float
) -> list[Condition]:
    """Why no node takes the VM; said only as long as it is so."""
    if pod and (scheduled := pod.unscheduled):
        reason, message = scheduled.get("reason") or UNSCHEDULABLE, scheduled.get("message") or ""
    elif trouble and trouble.reason == CLAIM_NOT_FOUND:
        reason, message = UNSCHEDULABLE, trouble.message
    elif pod and (left := until_overlooked(pod, now)) is not None and left <= 0:
        reason, message = NO_SCHEDULER, _overlooked(pod)
    else:
        return conditions.drop(wanted, POD_SCHEDULED)
    return conditions.put(wanted, POD_SCHEDULED, "False", now, reason=reason, message=message)


def until_overlooked(pod: LauncherPod, now: float) -> float | None:
    """Seconds until a Pod that no scheduler has looked at is overlooked; None where one has, or where it is going."""
    if pod.node or pod.going_down or conditions.find(pod.status.conditions, POD_SCHEDULED):
        return None
    return times.seconds(pod.metadata.creation_timestamp) + OVERLOOKED_AFTER - now


def _overlooked(pod: LauncherPod) -> str:
    return (
        f"no scheduler has looked at the virt-launcher pod within {OVERLOOKED_AFTER:.0f} s: there may be none named"
        f" {pod.spec.scheduler_name!r}. Set spec.schedulerName to one that runs, or leave it out"
    )


def container_trouble(pod: LauncherPod | None) -> Trouble | None:
    """The first container of the Pod that cannot start, most often for its image, or that ended beside the launcher."""
    for status in pod.containers if pod else ():
        waiting = status.state.waiting
        if pod and waiting and advice.lacks_image_volumes(waiting.message):
            return Trouble(NO_IMAGE_VOLUMES, advice.image_volumes(pod.node))
        if waiting and waiting.reason in STUCK:
            return Trouble(waiting.reason, waiting.message)
    return _ended_beside(pod) if pod else None


def _ended_beside(pod: LauncherPod) -> Trouble | None:
    """The first container that has ended while the launcher has not: one that shared a directory with the guest."""
    for status in pod.status.container_statuses:
        ended = status.state.terminated
        if ended and status.name != COMPUTE:
            said = ended.get("message") or f"exit code {ended.get('exitCode')}"
            return Trouble(ended.get("reason") or "Error", f"container {status.name} has ended: {said}")
    return None


def _deserted(pod: LauncherPod) -> Trouble | None:
    """Which file system of a running guest nobody serves any more. They also end with their hypervisor, in peace."""
    failed = any((s.state.terminated or {}).get("exitCode") for s in pod.status.container_statuses)
    trouble = _ended_beside(pod) if failed else None
    if trouble is None:
        return None
    so = "the guest waits for ever when it uses that file system. Restart the VM to have it again"
    return Trouble(SHARING_ENDED, f"{trouble.message} ({trouble.reason}); {so}")
