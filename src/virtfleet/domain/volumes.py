"""Where the data of a disk lies: from a volume of the VMI to a source of a libvirt disk.

The result is data, not a document, because hypervisors write it down differently: QEMU stacks images, Cloud Hypervisor
takes raw files only, a container mounts directories.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from virtfleet.api.disks import Disk, Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError


class Source(msgspec.Struct, frozen=True):
    """A disk image or block device."""

    path: str
    format: str = "raw"
    block: bool = False
    name: str = ""
    """Name that libvirt shows besides the path of a block device."""
    backing: Source | None = None
    """Image below this one, which is never written to."""
    discard: bool | None = None
    """Whether freed blocks are given back; None leaves it to the kind of disk."""

    @property
    def type(self) -> str:
        return "block" if self.block else "file"


def disks(vmi: VMI) -> Iterator[tuple[Disk, Volume, int]]:
    """Every disk with its volume, and that one's position in the VMI's list."""
    by_name = {volume.name: (volume, index) for index, volume in enumerate(vmi.spec.volumes)}
    for disk in vmi.spec.domain.devices.disks:
        if disk.name not in by_name:
            raise DomainError(f"disk {disk.name!r}: spec.volumes has no volume of that name")
        yield disk, *by_name[disk.name]


def source(vmi: VMI, volume: Volume, index: int, context: Context, *, stacked: bool = True) -> Source:
    """The source of a volume that is there from the start. `index` is its position in the VMI's list.

    A hypervisor that cannot stack images gets a raw disk of its own, which the launcher makes from what lies below.
    """
    name = volume.name
    if not stacked and (volume.container_disk or volume.ephemeral or volume.empty_disk):
        return Source(paths.raw_disk(name))
    if volume.container_disk:
        below = Source(paths.container_disk(index), context.disk_formats.get(name, "qcow2"))
        return Source(paths.ephemeral_disk(name), "qcow2", backing=below, discard=True)
    if volume.cloud_init_no_cloud or volume.cloud_init_config_drive:
        config_drive = not volume.cloud_init_no_cloud
        return Source(paths.cloud_init(vmi.metadata.namespace, vmi.metadata.name, config_drive))
    if volume.host_disk:
        return Source(paths.host_disk(name, volume.host_disk.path))
    if volume.persistent_volume_claim or volume.data_volume:
        return _claim(name, context)
    if volume.ephemeral:
        return Source(paths.ephemeral_disk(name), "qcow2", backing=_claim(name, context), discard=True)
    if volume.empty_disk:
        return Source(paths.empty_disk(name), "qcow2", discard=True)
    if volume.service_account:
        return Source(paths.SERVICE_ACCOUNT_DISK)
    if volume.downward_metrics:
        return Source(paths.DOWNWARD_METRICS_DISK)
    if kind := config_kind(volume):
        return Source(paths.config_disk(kind, name))
    raise DomainError(f"spec.volumes[{index}]: volume {name!r} cannot be shown as a disk")


def hotplugged(volume: Volume, context: Context) -> Source:
    """The source of a volume that was added while the VM ran."""
    if not (volume.persistent_volume_claim or volume.data_volume or volume.host_disk):
        raise DomainError(f"volume {volume.name!r} cannot be added to a running VM: it is no claim")
    block = volume.name in context.block_volumes
    path = paths.hotplug_place(volume.name) if block else paths.hotplug_image(volume.name)
    return Source(path, block=block, discard=_discards(volume.name, context))


def config_kind(volume: Volume) -> str:
    """The kind of a volume that is written to a disk from configuration, or ""."""
    kinds = {
        "config-map": volume.config_map,
        "secret": volume.secret,
        "downwardapi": volume.downward_api,
        "sysprep": volume.sysprep,
    }
    return next((kind for kind, value in kinds.items() if value), "")


def seed(volume: Volume) -> bool:
    """Whether a volume holds cloud-init's data."""
    return bool(volume.cloud_init_no_cloud or volume.cloud_init_config_drive)


def _claim(name: str, context: Context) -> Source:
    if name in context.block_volumes:
        return Source(paths.claim_device(name), block=True, name=name, discard=_discards(name, context))
    return Source(paths.claim_image(name), discard=_discards(name, context))


def _discards(name: str, context: Context) -> bool | None:
    return None if name in context.preallocated_volumes else True
