"""Whether a VM could move to another node while it runs, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from virtfleet.api import names, traits
from virtfleet.api.names import NotMigratable
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.hypervisors import features
from virtfleet.hypervisors.base import Hypervisor

_SHARED = "ReadWriteMany"


class Obstacle(NamedTuple):
    """Something that a migration would fail over."""

    reason: str
    message: str


def obstacles(vmi: VMI, hypervisor: Hypervisor) -> Iterator[Obstacle]:
    """What keeps the VM where it is: what its owner could change first, what nobody can change last."""
    yield from _interfaces(vmi)
    yield from _devices(vmi)
    if traits.sev(vmi):
        yield Obstacle(NotMigratable.SEV, "VMI uses SEV")
    if traits.tdx(vmi):
        yield Obstacle(NotMigratable.TDX, "VMI uses TDX")
    if traits.secure_execution(vmi):
        yield Obstacle(NotMigratable.SECURE_EXECUTION, "VMI uses Secure Execution")
    passthrough = vmi.spec.domain.features.hyperv_passthrough if vmi.spec.domain.features else None
    if passthrough and passthrough.enabled is not False:
        yield Obstacle(NotMigratable.HYPERV_PASSTHROUGH, "VMI uses hyperv passthrough")
    if any(disk.lun and disk.lun.reservation for disk in vmi.spec.domain.devices.disks):
        yield Obstacle(NotMigratable.PERSISTENT_RESERVATION, "VMI uses SCSI persistent reservation")
    yield from _volumes(vmi)
    if why := features.why_immobile(hypervisor, vmi.spec.architecture or "amd64"):
        yield Obstacle(NotMigratable.NOT_YET if why == features.IMMOBILE else NotMigratable.OTHER, why)


def _interfaces(vmi: VMI) -> Iterator[Obstacle]:
    primary = next((n.name for n in vmi.spec.networks if n.pod or (n.multus and n.multus.default)), None)
    interface = next((i for i in vmi.spec.domain.devices.interfaces if i.name == primary), None)
    if interface is None or interface.masquerade or interface.passt_binding:
        return
    if interface.bridge and names.ALLOW_POD_BRIDGE_MIGRATION in vmi.metadata.annotations:
        return
    yield Obstacle(
        NotMigratable.INTERFACE,
        "cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network",
    )


def _devices(vmi: VMI) -> Iterator[Obstacle]:
    if vmi.spec.domain.devices.host_devices:
        yield Obstacle(NotMigratable.HOST_DEVICE, "VMI specifies non-migratable generic PCI host device")
    if vmi.spec.domain.devices.gpus:
        yield Obstacle(NotMigratable.HOST_DEVICE, "VMI specifies non-migratable GPU device")


def _volumes(vmi: VMI) -> Iterator[Obstacle]:
    claims = {s.name: s.persistent_volume_claim_info for s in vmi.status.volume_status}
    needs = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
    for volume in vmi.spec.volumes:
        if volume.persistent_volume_claim or volume.data_volume:
            claim = claims.get(volume.name)
            named = volume.persistent_volume_claim
            name = named.claim_name if named else volume.data_volume.name if volume.data_volume else ""
            if claim is None:
                message = f"cannot migrate VMI: Unable to determine if PVC {name} is shared, {needs}"
                yield Obstacle(NotMigratable.DISKS, message)
            elif _SHARED not in claim.access_modes:
                yield Obstacle(NotMigratable.DISKS, f"cannot migrate VMI: PVC {name} is not shared, {needs}")
        elif volume.host_disk and not volume.host_disk.shared:
            yield Obstacle(NotMigratable.DISKS, "cannot migrate VMI with non-shared HostDisk")


def copies_disks(vmi: VMI) -> bool:
    """Whether a migration would have to copy disks that are only here."""
    writable = {d.name for d in vmi.spec.domain.devices.disks if not d.cdrom}
    return any(
        volume.name in writable
        for volume in vmi.spec.volumes
        if not (volume.persistent_volume_claim or volume.data_volume or volume.host_disk)
    )
