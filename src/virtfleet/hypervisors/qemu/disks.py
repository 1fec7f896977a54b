"""Disks, LUNs and CD-ROM drives of a QEMU domain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from xml.etree.ElementTree import Element

from virtfleet.api import hotplug, traits
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmistatus import PersistentVolumeClaimInfo
from virtfleet.domain import paths, volumes
from virtfleet.domain.errors import DomainError
from virtfleet.domain.interfaces import pci_address
from virtfleet.domain.targets import TargetNames
from virtfleet.domain.volumes import Source
from virtfleet.domain.xml import add
from virtfleet.hypervisors.qemu.draft import Draft
from virtfleet.hypervisors.qemu.iothreads import IOThreads, threads

_ERROR_POLICIES = ("stop", "ignore", "report", "enospace")
_EMPTY_DRIVE = Source("", block=True, discard=True)
_S390X_MOST_BLOCK_SIZE = 4096


def disks(draft: Draft) -> None:
    """All disks whose volume is there: not one that the status does not list yet, nor one that is still being added."""
    vmi = draft.vmi
    by_name = {volume.name: (index, volume) for index, volume in enumerate(vmi.spec.volumes)}
    statuses = {status.name: status for status in vmi.status.volume_status}
    permanent = {name for name, status in statuses.items() if not status.hotplug_volume}
    targets, io = TargetNames(vmi), threads(vmi)
    shared, own = cycle(range(1, io.shared + 1)), count(io.shared + 1)
    for disk in draft.spec.disks:
        status = statuses.get(disk.name)
        added = status is not None and status.hotplug_volume is not None
        attached = added and status is not None and status.phase in (hotplug.MOUNTED, hotplug.READY)
        index, volume = by_name.get(disk.name, (-1, None))
        if disk.cdrom and volume and (not attached if added else permanent and disk.name not in permanent):
            volume = None  # its medium is not there yet, or no more
        source = _location(draft, disk, volume, index, added=added)
        element = _disk(draft, disk, volume, source, targets, io, own if disk.dedicated_io_thread else shared)
        if status and status.persistent_volume_claim_info and not disk.cdrom:
            _claim_size(element, status.persistent_volume_claim_info)
        if volume is None or attached or not permanent or disk.name in permanent:
            draft.devices.append(element)


def _location(draft: Draft, disk: Disk, volume: Volume | None, index: int, *, added: bool) -> Source:
    if volume is None:
        if not disk.cdrom:
            raise DomainError(f"disk {disk.name!r}: spec.volumes has no volume of that name")
        return _EMPTY_DRIVE
    if added:
        return volumes.hotplugged(volume, draft.context)
    return volumes.source(draft.vmi, volume, index, draft.context)


def _disk(
    draft: Draft,
    disk: Disk,
    volume: Volume | None,
    source: Source,
    targets: TargetNames,
    io: IOThreads,
    thread: Iterator[int],
) -> Element:
    bus = traits.bus(disk)
    metrics = volume is not None and volume.downward_metrics is not None
    kind = "disk" if disk.disk else "lun" if disk.lun else "cdrom" if disk.cdrom else ""
    element = Element("disk", {"device": kind, "type": source.type})
    if metrics or (disk.disk and bus == "virtio"):
        element.set("model", draft.virtio)

    target, unit = targets.name(disk.name, bus)
    _source(element, source, reservation=bool(disk.lun and disk.lun.reservation))
    add(element, "target", bus=bus, dev=target, tray=disk.cdrom.tray if disk.cdrom and not disk.disk else None)
    if disk.disk and disk.serial:
        add(element, "serial", disk.serial)
    driver = _driver(element, draft, disk, source, bus, plain=metrics)
    if bus == "virtio" and io.total:
        if io.pool:
            pool = add(driver, "iothreads")
            for number in range(1, io.pool + 1):
                add(pool, "iothread", id=number)
        else:
            driver.set("iothread", str(next(thread)))
    if metrics or _read_only(disk):
        add(element, "readonly")
    draft.alias(element, disk.name)
    if source.backing:
        backing = add(element, "backingStore", type=source.backing.type)
        add(backing, "format", type=source.backing.format)
        _source(backing, source.backing)
    if disk.boot_order is not None:
        add(element, "boot", order=disk.boot_order)
    _address(element, disk, unit)
    _block_sizes(element, draft, disk)
    if disk.disk and disk.shareable:
        add(element, "shareable")
    return element


def _driver(element: Element, draft: Draft, disk: Disk, source: Source, bus: str, *, plain: bool) -> Element:
    if disk.error_policy and disk.error_policy not in _ERROR_POLICIES:
        raise DomainError(f"disk {disk.name!r}: error policy {disk.error_policy!r} is not one of {_ERROR_POLICIES}")
    driver = add(element, "driver", name="qemu", type=source.format, error_policy=disk.error_policy or "stop")
    if plain:
        return driver
    cache = disk.cache
    if disk.disk and disk.shareable:
        if cache not in ("", "none"):
            raise DomainError(f"disk {disk.name!r}: a shared disk needs cache none, not {cache!r}")
        cache = "none"
    discards = source.discard
    if discards is None:
        discards = not disk.cdrom and disk.name not in draft.context.preallocated_volumes
    settings = {
        "cache": cache,
        "io": disk.io,
        "discard": "unmap" if discards else "",
        "queues": str(draft.topology.vcpus) if draft.spec.block_multi_queue and bus == "virtio" else "",
        "iommu": draft.iommu if bus == "virtio" else "",
    }
    for name, value in settings.items():
        if value:
            driver.set(name, value)
    return driver


def _source(element: Element, source: Source, *, reservation: bool = False) -> None:
    location = {"dev" if source.block else "file": source.path}
    target = add(element, "source", **location, name=source.name)
    if reservation:
        reservations = add(target, "reservations", managed="no", migration="yes")
        add(reservations, "source", type="unix", path=paths.PR_HELPER_SOCKET, mode="client")


def _read_only(disk: Disk) -> bool:
    if target := disk.disk or disk.lun:
        return bool(target.readonly)
    return disk.cdrom is not None and disk.cdrom.readonly is not False


def _address(element: Element, disk: Disk, unit: int) -> None:
    if disk.disk and disk.disk.pci_address:
        if disk.disk.bus != "virtio":
            raise DomainError(f"disk {disk.name!r}: a PCI address needs the virtio bus, not {disk.disk.bus!r}")
        pci_address(element, disk.disk.pci_address, f"disk {disk.name!r}")
    elif (disk.disk or disk.lun) and traits.bus(disk) == "scsi":
        add(element, "address", type="drive", controller=0, bus=0, unit=unit)


def _block_sizes(element: Element, draft: Draft, disk: Disk) -> None:
    wanted = disk.block_size
    if not wanted:
        return
    if wanted.match_volume and wanted.match_volume.enabled is not False and not wanted.custom:
        raise DomainError(
            f"disk {disk.name!r}: the block size of its volume is not known; write it into blockSize.custom"
        )
    if custom := wanted.custom:
        logical, physical = custom.logical or 0, custom.physical or 0
        if draft.architecture.name == "s390x" and max(logical, physical) > _S390X_MOST_BLOCK_SIZE:
            raise DomainError(
                f"disk {disk.name!r}: custom block size (logical={logical}, physical={physical}) exceeds the maximum "
                f"supported size of {_S390X_MOST_BLOCK_SIZE} for architecture s390x"
            )
        sizes = {"logical_block_size": logical or None, "physical_block_size": physical or None}
        add(element, "blockio", **sizes, discard_granularity=custom.discard_granularity)


def _claim_size(element: Element, info: PersistentVolumeClaimInfo) -> None:
    """How much of the claim the disk may grow to, which the launcher needs to expand it."""
    if info.filesystem_overhead:
        add(element, "filesystemOverhead", info.filesystem_overhead)
    capacity, request = info.capacity.get("storage"), info.requests.get("storage")
    if capacity is not None and request is not None:
        add(element, "capacity", min(Quantity.parse(capacity), Quantity.parse(request)).value())
