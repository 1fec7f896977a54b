"""Volumes that come and go while a VM runs: which they are, and what a request or an edited VM makes of a spec. Pure.

A claim is plugged in through a Pod of its own where its volume says `hotpluggable`. The status has an entry for each,
which names the claim that it is about: a volume whose claim is exchanged is unplugged first, and then plugged in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from virtfleet.api.disks import Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.api.vmistatus import VolumeStatus

Obj = dict[str, Any]
Section = Mapping[str, Any]

PENDING: Final = "Pending"
ATTACHED: Final = "AttachedToNode"
MOUNTED: Final = "MountedToPod"
READY: Final = "Ready"
DETACHING: Final = "Detaching"
UNMOUNTED: Final = "UnMountedFromPod"
SOURCES: Final = {"persistentVolumeClaim": "claimName", "dataVolume": "name"}


# --- as views


def claim(volume: Volume) -> str:
    """The claim of a volume that is plugged in; "" for one that is not."""
    if volume.persistent_volume_claim and volume.persistent_volume_claim.hotpluggable:
        return volume.persistent_volume_claim.claim_name
    return volume.data_volume.name if volume.data_volume and volume.data_volume.hotpluggable else ""


def wanted(vmi: VMI) -> dict[str, str]:
    """Claims of the volumes that are to be plugged in, by volume."""
    return {volume.name: named for volume in vmi.spec.volumes if (named := claim(volume))}


def entries(vmi: VMI) -> dict[str, VolumeStatus]:
    """What the status says of volumes that are or were plugged in."""
    return {status.name: status for status in vmi.status.volume_status if status.hotplug_volume is not None}


def is_wanted(entry: VolumeStatus, claims: Mapping[str, str]) -> bool:
    """Whether an entry of the status is about what the spec asks for."""
    info = entry.persistent_volume_claim_info
    return entry.name in claims and (info is None or info.claim_name in ("", claims[entry.name]))


# --- as objects


class Parts(NamedTuple):
    """What belongs together in a spec: a list at its top, and one of its devices."""

    top: str
    devices: str

    def of(self, spec: Section) -> tuple[list[Obj], list[Obj]]:
        devices = (spec.get("domain") or {}).get("devices") or {}
        return [*(spec.get(self.top) or ())], [*(devices.get(self.devices) or ())]

    def written(self, top: list[Obj], devices: list[Obj]) -> Obj:
        return {self.top: top, "domain": {"devices": {self.devices: devices}}}

    def into(self, spec: Section, top: list[Obj], devices: list[Obj]) -> Obj:
        """A spec with these lists in place of its own."""
        domain = spec.get("domain") or {}
        inside = {**(domain.get("devices") or {}), self.devices: devices}
        return {**spec, self.top: top, "domain": {**domain, "devices": inside}}

    def differ(self, spec: Section, change: Section) -> bool:
        """Whether they are not those of a spec already."""
        return self.of(spec) != self.of(change)


_PARTS = Parts("volumes", "disks")
differs = _PARTS.differ


def claim_of(volume: Section) -> str:
    """The same of a volume that no view was made of."""
    for kind, field in SOURCES.items():
        source = volume.get(kind)
        if source and source.get("hotpluggable"):
            return str(source.get(field) or "")
    return ""


def with_request(spec: Section, request: Section) -> Obj:
    """Volumes and disks of a VMI's spec after a request to add or remove a volume. May be repeated."""
    volumes, disks = _PARTS.of(spec)
    if add := request.get("addVolumeOptions"):
        name = add["name"]
        if name not in by_name(volumes):
            volumes.append({"name": name, **add["volumeSource"]})
        if name not in by_name(disks):
            disks.append({**add["disk"], "name": name})
    elif remove := request.get("removeVolumeOptions"):
        gone = {v["name"] for v in volumes if claim_of(v) and remove["name"] in (v["name"], claim_of(v))}
        volumes = [v for v in volumes if v["name"] not in gone]
        disks = [d for d in disks if d["name"] not in gone or d.get("cdrom") is not None]  # a drive stays, and is empty
    return _PARTS.written(volumes, disks)


def as_declared(spec: Section, template: Section, busy: Iterable[str]) -> Obj:
    """Volumes and disks of a running VMI as the VM's template has them now, as far as they can be plugged.

    A volume that became another one goes first. `busy` are those that the status still has something to say of.
    """
    volumes, disks = _PARTS.of(spec)
    declared, declared_disks = map(by_name, _PARTS.of(template))
    kept = [v for v in volumes if not claim_of(v) or declared.get(v["name"]) == v]
    known = {v["name"] for v in kept} | set(busy)
    kept += [v for name, v in declared.items() if claim_of(v) and name not in known]
    there = {v["name"] for v in kept}
    shown = [d for d in disks if d["name"] in there or _is_drive(d)]  # which goes with a restart, if it is to go
    new = there - {d["name"] for d in shown}
    shown += [d for name, d in declared_disks.items() if name in new]
    return _PARTS.written(kept, shown)


def unsettled(old: Section, new: Section, live: Mapping[str, str]) -> tuple[Obj, Obj]:
    """Two specs of a template, without the volumes that the running VMI has as the new one wants them.

    `live` are the claims that it has plugged in. What is left and differs needs a restart.
    """
    (before, here), (after, there) = (map(by_name, _PARTS.of(spec)) for spec in (old, new))
    settled = {
        name
        for name in before.keys() | after.keys()
        if all(name not in side or claim_of(side[name]) for side in (before, after))
        and live.get(name, "") == claim_of(after.get(name, {}))
    }
    if not settled:
        return dict(old), dict(new)
    gone = {name for name in settled & (here.keys() ^ there.keys()) if not _is_drive(here.get(name) or there[name])}
    return _without(old, settled, gone), _without(new, settled, gone)


def _without(spec: Section, volumes: Iterable[str], disks: Iterable[str]) -> Obj:
    left, shown = _PARTS.of(spec)
    return _PARTS.into(
        spec, [v for v in left if v["name"] not in volumes], [d for d in shown if d["name"] not in disks]
    )


def _is_drive(disk: Section) -> bool:
    """Whether it is there without a volume, too, and neither comes nor goes while the guest runs."""
    return disk.get("cdrom") is not None


def by_name(items: Iterable[Obj]) -> dict[str, Obj]:
    return {item["name"]: item for item in items}
