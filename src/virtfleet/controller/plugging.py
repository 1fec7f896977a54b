"""Volumes of running VMs, brought to their nodes and away again: attachment Pods, and what the VMI's status says.

The status is written by two: here, from Pending to AttachedToNode and that a volume is Detaching; by the handler, that
it is mounted, that the guest has it, and that it is not mounted any more. A Pod goes after that, and the entry last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from virtfleet.api import hotplug, kinds
from virtfleet.controller import lifecycle
from virtfleet.controller.attachments import Attachments
from virtfleet.controller.launcherpod import AttachmentPod, LauncherPod
from virtfleet.controller.pods import owners
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.guest import Volume
from virtfleet.controller.records.instance import Instance, PluggedVolume
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import Obj

WORKERS = 4
_IN_USE = (hotplug.MOUNTED, hotplug.READY)


@dataclass(frozen=True, slots=True)
class Plugged:
    """A volume that is wanted: its claim, where there is one, and the Pod that attaches it."""

    volume: Volume
    claim: Claim | None = None
    pod: AttachmentPod | None = None


def statuses(present: list[Obj], wanted: Mapping[str, Plugged], gone: frozenset[str]) -> list[Obj]:
    """The volumeStatus as it should be. `gone` are volumes of which nothing is left."""
    entries = []
    for entry in present:
        name = entry["name"]
        if entry.get("hotplugVolume") is None:
            entries.append(entry)
        elif is_about(entry, wanted.get(name)):
            entries.append(_of_wanted(entry, wanted[name]))
        elif name not in gone:
            entries.append(_of_unwanted(entry))
    known = {entry["name"] for entry in present}
    for name, plugged in wanted.items():
        if name not in known:
            entries.append(_of_wanted(lifecycle.volume_status(plugged.volume, plugged.claim), plugged))
    return entries


def is_about(entry: Obj, plugged: Plugged | None) -> bool:
    """Whether an entry is about the claim that is wanted."""
    claim = (entry.get("persistentVolumeClaimInfo") or {}).get("claimName")
    return plugged is not None and claim in (None, plugged.volume.claim)


def _of_wanted(entry: Obj, plugged: Plugged) -> Obj:
    pod, name = plugged.pod, entry["name"]
    if plugged.claim and not entry.get("persistentVolumeClaimInfo"):
        entry = {**lifecycle.volume_status(plugged.volume, plugged.claim), **entry}
    if pod and pod.ready:
        entry = {**entry, "hotplugVolume": {"attachPodName": pod.name, "attachPodUID": pod.uid}}
    if entry.get("phase") in _IN_USE:
        return entry
    if pod and pod.ready:
        said = f"Created hotplug attachment pod {pod.name}, for volume {name}"
        return {**entry, "phase": hotplug.ATTACHED, "reason": "SuccessfulCreate", "message": said}
    if plugged.claim is None:
        said = f"claim {plugged.volume.claim} does not exist; create it"
        return {**entry, "phase": hotplug.PENDING, "reason": "FailedPvcNotFound", "message": said}
    said = pod.trouble if pod else "its attachment pod is being made"
    return {**entry, "phase": hotplug.PENDING, "reason": "PVCNotReady", "message": said}


def _of_unwanted(entry: Obj) -> Obj:
    if entry.get("phase") in (hotplug.DETACHING, hotplug.UNMOUNTED):
        return entry
    said = f"Volume {entry['name']} is being unplugged"
    return {**entry, "phase": hotplug.DETACHING, "reason": "VolumeDetaching", "message": said}


class Plugging(Part):
    """The controller. Its keys are those of VMIs."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._attachers = shared.attached
        self._attachments = Attachments(shared)
        self.controller = Controller(f"{kinds.VMI.singular}-volumes", self.reconcile, workers=WORKERS)
        self.controller.follow(self._instances, lambda vmi: self._of([vmi]))
        self.controller.follow(self._attachers, lambda pod: [pod.vmi_key])
        self.controller.follow(self._pods.cache, lambda pod: self._of(map(self._instances.get, owners(pod))))
        self.controller.follow(self._claims, lambda claim: self._of(self._instances.by_index("claim", claim.key)))

    def _of(self, vmis: Iterable[Instance | None]) -> list[str]:
        return [vmi.key for vmi in vmis if vmi and vmi.plugs]

    async def reconcile(self, key: str) -> float | None:
        """Have the Pods that the VMI's volumes need, no others, and say how the volumes stand."""
        vmi = self._instances.get(key)
        if vmi is None:
            return None  # the garbage collector takes Pods along with their launcher's
        launchers = self._pods.of(vmi.uid)
        current = lifecycle.current_pod(vmi, launchers)
        await self._clear(vmi, {pod.uid for pod in launchers if not pod.ended}, current)
        if vmi.deleting or vmi.final or not vmi.handed_over or current is None or current.going_down:
            return None
        wanted = {v.name: await self._attached(vmi, current, v) for v in vmi.spec.volumes if v.plugged}
        gone = {entry.name for entry in vmi.status.volume_status if await self._is_gone(vmi, current, entry, wanted)}
        await self._write(vmi, wanted, frozenset(gone))
        return None

    async def _attached(self, vmi: Instance, launcher: LauncherPod, volume: Volume) -> Plugged:
        claim = self._attachments.claim(vmi, volume.claim)
        entry = next((entry for entry in vmi.status.volume_status if entry.name == volume.name), None)
        if entry and entry.claim not in ("", volume.claim):
            return Plugged(volume, claim)  # what has the name goes first
        return Plugged(volume, claim, await self._attachments.ensure(vmi, launcher, volume))

    async def _is_gone(
        self, vmi: Instance, launcher: LauncherPod, entry: PluggedVolume, wanted: Mapping[str, Plugged]
    ) -> bool:
        """Whether nothing is left of a volume that nobody wants; its Pods go when nobody uses it either."""
        plugged = wanted.get(entry.name)
        if entry.hotplug_volume is None or (plugged and entry.claim in ("", plugged.volume.claim)):
            return False
        if entry.phase != hotplug.UNMOUNTED:
            return False
        pods = self._attachments.of(launcher.uid, entry.name, entry.claim)
        for pod in pods:
            await self._attachments.delete(vmi, pod)
        return not pods

    async def _clear(self, vmi: Instance, launchers: set[str], current: LauncherPod | None) -> None:
        """Delete the Pods of launchers that have ended, and those of which the VMI says nothing."""
        known = vmi.spec.plugged.keys() | {entry.name for entry in vmi.status.volume_status if entry.hotplug_volume}
        for pod in self._attachers.by_index("vmi", vmi.key):
            unknown = current is not None and pod.controlled_by(current.uid) and pod.volume not in known
            if (unknown or not any(map(pod.controlled_by, launchers))) and not pod.deleting:
                await self._attachments.delete(vmi, pod)

    async def _write(self, vmi: Instance, wanted: Mapping[str, Plugged], gone: frozenset[str]) -> None:
        with ignoring(is_not_found):
            whole = await self._whole(vmi)
            present = (whole.get("status") or {}).get("volumeStatus") or []
            entries = statuses(present, wanted, gone)
            if whole["metadata"]["uid"] == vmi.uid and entries != present:
                await self._patch_instance(vmi, {"status": {"volumeStatus": entries}}, whole)
