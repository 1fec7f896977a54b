"""Requests to attach and detach volumes: checked as KubeVirt checks them, so that callers learn what is wrong. Pure.

Carrying them out comes later; until then a request without a fault is refused too, and says so.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from virtfleet.admission.findings import Findings
from virtfleet.admission.updates import check_pluggable
from virtfleet.api.disks import Volume
from virtfleet.api.vm import HotplugVolumeSource
from virtfleet.gateway.machines import Vm, Vmi, bad_request
from virtfleet.kube.errors import ApiError


class AddVolumeOptions(msgspec.Struct, rename="camel"):
    """The body of a request to attach a volume."""

    name: str = ""
    disk: dict[str, Any] | None = None
    volume_source: HotplugVolumeSource | None = None


class RemoveVolumeOptions(msgspec.Struct):
    """The body of a request to detach a volume."""

    name: str = ""


def add(machine: Vm | Vmi, options: AddVolumeOptions) -> NoReturn:
    """Say why the volume is not attached."""
    if not options.name:
        raise bad_request("AddVolumeOptions requires name to be set")
    if options.disk is None:
        raise bad_request("AddVolumeOptions requires disk to not be nil")
    source = _source(options.volume_source) if options.volume_source else ""
    if not source:
        raise bad_request("AddVolumeOptions requires VolumeSource to not be nil: name a claim or a DataVolume in it")
    findings = Findings()
    check_pluggable(options.disk, options.name, "disk", findings)
    if not findings.allowed:
        raise bad_request(findings.causes[0].message)
    for volume in _volumes(machine):
        if volume.name == options.name:
            raise machine.conflict(
                f"Unable to add volume [{options.name}] because volume with that name already exists"
            )
        if source == _source(volume):
            raise machine.conflict(f"Unable to add volume source [{source}] because it already exists")
    raise _later(f"volume {options.name} cannot be attached to a running VM yet")


def remove(machine: Vm | Vmi, options: RemoveVolumeOptions) -> NoReturn:
    """Say why the volume is not detached."""
    if not options.name:
        raise bad_request("RemoveVolumeOptions requires name to be set")
    volume = next((v for v in _volumes(machine) if options.name in (v.name, _source(v))), None)
    if volume is None:
        raise machine.conflict(f"Unable to remove volume [{options.name}] because it does not exist")
    source = volume.data_volume or volume.persistent_volume_claim
    if source is None or not source.hotpluggable:
        raise machine.conflict(f"Unable to remove volume [{volume.name}] because it is not hotpluggable")
    raise _later(f"volume {options.name} cannot be detached from a running VM yet")


def _later(what: str) -> ApiError:
    return bad_request(f"{what}; stop the VM and change its spec instead")


def _volumes(machine: Vm | Vmi) -> list[Volume]:
    return machine.view.spec.template.spec.volumes if isinstance(machine, Vm) else machine.view.spec.volumes


def _source(volume: Volume | HotplugVolumeSource) -> str:
    """The claim or DataVolume behind a volume; "" for those of other kinds."""
    if volume.data_volume:
        return volume.data_volume.name
    return volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim else ""
