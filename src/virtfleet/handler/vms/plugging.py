"""Volumes that come to a running VM, and go: from the Pod that attaches a volume to the node into the launcher's.

Nothing is remembered: what is mounted in a launcher says the kernel, what the guest has says its launcher, and which
Pod has a volume says the VMI's status, which only components write. A launcher uses what it finds, and nothing that is
in the domain is ever taken away from under it: the guest lets go of a disk first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from virtfleet.api import hotplug
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.api.vmistatus import VolumeStatus
from virtfleet.domain import paths
from virtfleet.handler.pods import mounting, process
from virtfleet.handler.pods.files import is_uid
from virtfleet.handler.pods.process import PodProcess
from virtfleet.kube.resource import Obj
from virtfleet.pods.attachment import PROCESS
from virtfleet.protocol.messages import DomainState

_USABLE = (hotplug.ATTACHED, hotplug.MOUNTED, hotplug.READY)
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # of a volume, which becomes one of a file
_SAID = {
    hotplug.MOUNTED: ("VolumeMountedToPod", "Volume %s has been mounted in virt-launcher pod"),
    hotplug.READY: ("VolumeReady", "Successfully attach hotplugged volume %s to VM"),
    hotplug.UNMOUNTED: ("VolumeUnMountedFromPod", "Volume %s has been unmounted from virt-launcher pod"),
}


class NotAttached(Exception):
    """A volume cannot be had yet; the message is for the owner of the VM."""


def fingerprint(vmi: VMI) -> list[str]:
    """What of the status decides which volumes a launcher is told of."""
    claims = hotplug.wanted(vmi)
    usable = (e for e in hotplug.entries(vmi).values() if e.phase in _USABLE and hotplug.is_wanted(e, claims))
    return sorted(entry.name for entry in usable)


def awaited(vmi: VMI) -> list[str]:
    """Volumes without which the VM is not started, and that are not on the node yet."""
    claims = hotplug.wanted(vmi)
    return sorted(claims.keys() - fingerprint(vmi)) if claims else []


def mounted(launcher: PodProcess, vmi: VMI) -> frozenset[str]:
    """Volumes that the launcher sees."""
    if not hotplug.entries(vmi):
        return frozenset()
    return frozenset(mounting.shown(launcher, paths.HOTPLUG_DISKS))


async def mount(vmi: VMI, launcher: PodProcess, *, target: bool) -> tuple[frozenset[str], str]:
    """Mount what is wanted and on the node; the answer is what the launcher sees then, and what went wrong.

    A target has Pods of its own that hold the volumes, of which the migration tells.
    """
    there, trouble, claims = mounted(launcher, vmi), "", hotplug.wanted(vmi)
    for entry in hotplug.entries(vmi).values():
        if entry.name in there or not hotplug.is_wanted(entry, claims):
            continue
        if not target and entry.phase not in _USABLE:
            continue
        try:
            await _mount(entry, _pods(vmi, entry, target=target), launcher)
            there |= {entry.name}
        except (NotAttached, OSError) as error:
            trouble = f"volume {entry.name}: {error}"
    return there, trouble


async def unmount(vmi: VMI, launcher: PodProcess, state: DomainState) -> list[str]:
    """Unmount what nobody wants and the guest has let go of; the answer is what the guest still has."""
    claims, kept = hotplug.wanted(vmi), []
    unwanted = [entry.name for entry in hotplug.entries(vmi).values() if not hotplug.is_wanted(entry, claims)]
    for name in set(unwanted) & mounted(launcher, vmi):
        if name in state.disks:
            kept.append(name)
            continue
        # The rule first: as long as it is mounted, whoever comes after this handler knows of the device.
        if device := mounting.device(launcher, paths.HOTPLUG_DISKS, name):
            launcher.group().deny(device)
        await mounting.hide(launcher, paths.HOTPLUG_DISKS, name)
    return kept


def shown(obj: Obj, vmi: VMI, there: Iterable[str], state: DomainState | None) -> Obj:
    """The VMI as a launcher is told of it: with the volumes that it sees, or has in use already, and no others."""
    claims, entries = hotplug.wanted(vmi), hotplug.entries(vmi)
    usable = {*there, *(state.disks if state else ())}
    for status in (obj.get("status") or {}).get("volumeStatus") or ():
        if entry := entries.get(status["name"]):
            here = entry.name in usable and hotplug.is_wanted(entry, claims)
            status["phase"] = hotplug.MOUNTED if here else hotplug.PENDING
    return obj


def said(entry: Obj, vmi: VMI, there: frozenset[str] | None, state: DomainState) -> Obj:
    """An entry of the status as it is now: what a handler says of a volume that is plugged in or out."""
    if there is None:
        return entry
    name, target = entry["name"], state.disks.get(entry["name"], "")
    known = hotplug.entries(vmi).get(name)
    if known and hotplug.is_wanted(known, hotplug.wanted(vmi)):
        phase = hotplug.READY if target and name in there else hotplug.MOUNTED if name in there else ""
    else:
        phase = "" if target or name in there else hotplug.UNMOUNTED
    if not phase:
        return entry
    reason, words = _SAID[phase]
    return {**entry, "target": target, "phase": phase, "reason": reason, "message": words % name}


def news(before: Iterable[Obj], now: Iterable[Obj]) -> list[tuple[str, str]]:
    """Events for volumes that a handler says something new of: reason and message."""
    known = {entry["name"]: entry.get("phase") for entry in before}
    fresh = [e for e in now if e.get("hotplugVolume") is not None and e.get("phase") != known.get(e["name"])]
    return [(entry["reason"], entry["message"]) for entry in fresh if entry.get("phase") in _SAID]


def _pods(vmi: VMI, entry: VolumeStatus, *, target: bool) -> list[str]:
    """UIDs of the Pods of which one has the volume."""
    migration, by = vmi.status.migration_state, entry.hotplug_volume
    if target:
        return migration.target_attachment_pod_uid.split(",") if migration else []
    return [by.attach_pod_uid] if by else []


async def _mount(entry: VolumeStatus, pods: list[str], launcher: PodProcess) -> None:
    if not _NAME.fullmatch(entry.name):
        raise NotAttached("it cannot be plugged in under such a name")
    info = entry.persistent_volume_claim_info
    path = paths.attached(entry.name, block=bool(info and info.volume_mode == "Block"))
    for holder in _holders(pods):
        if not holder.has(path):
            continue
        with holder.opened(path, os.O_PATH) as source:
            if device := mounting.rule(os.fstat(source)):
                os.chown(f"/proc/self/fd/{source}", paths.USER, paths.USER)
                launcher.group().allow(device)
            await mounting.show(source, holder, launcher, paths.HOTPLUG_DISKS, entry.name)
        return
    raise NotAttached("the Pod that attaches it to the node does not run; it is tried again")


def _holders(pods: list[str]) -> list[PodProcess]:
    """The processes that hold volumes, in these Pods."""
    return [holder for pod in pods if is_uid(pod) for holder in process.of_pod(pod, (PROCESS,))]
