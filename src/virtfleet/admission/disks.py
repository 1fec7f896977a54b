"""Rules for disks, and for how disks, file systems and volumes belong together."""

from __future__ import annotations

import posixpath
import re

from virtfleet.admission.case import Case
from virtfleet.admission.names import dns_label_error
from virtfleet.api.addresses import PCI_ADDRESS
from virtfleet.api.disks import TARGETS, BlockSize, Disk
from virtfleet.api.meta import is_on
from virtfleet.api.view import given, part

_DISKS = "domain.devices.disks"
# KubeVirt appends the path once more for some rules; tools look for it.
_ODD = f"{_DISKS}.domain.devices.disks"
_BUSES = ("virtio", "scsi", "sata", "usb")
_CACHES = ("", "none", "writethrough", "writeback")
_IO_MODES = ("", "native", "threads")
_ERROR_POLICIES = ("stop", "ignore", "report", "enospace")
_SERIAL = re.compile(r"[A-Za-z0-9_.+-]+")
_LONGEST_SERIAL = 256
_SMALLEST_BLOCK, _LARGEST_BLOCK = 512, 2 * 1024**2
_RESERVED_PATHS = ("/run/kubevirt", "/run/libvirt")  # also as /var/run


def check(case: Case) -> None:
    first: dict[str, int] = {}
    for i, disk in enumerate(case.devices.disks):
        name, path = disk.name, f"{_DISKS}[{i}]"
        if name in first:
            case.invalid(f"{path}.name", f"disks {first[name]} and {i} are both called {name!r}; rename one")
        first.setdefault(name, i)
        if why := dns_label_error(name):
            case.invalid(f"{_ODD}[{i}].name", f"disk name {name!r} must be usable as a container name: {why}")
        targets = given(disk, TARGETS)
        if len(targets) > 1:
            case.invalid(path, f"a disk is one of disk, lun and cdrom, not {' and '.join(targets)}; keep one")
        target = targets[0] if targets else ""
        bus = part(disk, f"{target}.bus") if target else ""
        _check_bus(case, disk, i, target, bus)
        _check_pci_address(case, disk, i)
        _check_attributes(case, disk, i)
        if disk.block_size is not None:
            _check_block_size(case, disk.block_size, bus, f"{path}.blockSize")
    _check_boot_order(case)
    _check_backing(case)
    if not case.cluster.persistent_reservation and any(d.lun and d.lun.reservation for d in case.devices.disks):
        case.gate_is_off(f"{_DISKS}.luns.reservation", "PersistentReservation", "lun.reservation")


def _check_bus(case: Case, disk: Disk, i: int, target: str, bus: str) -> None:
    field = f"{_DISKS}[{i}].{target}.bus"
    if not bus:
        return
    if bus == "ide":
        case.invalid(field, "bus ide does not exist on this machine type; use sata")
    elif bus == "virtio" and target == "cdrom":
        case.invalid(field, "a CD-ROM cannot be on the virtio bus; use sata or scsi")
    elif bus == "sata" and disk.disk and disk.disk.readonly:
        case.invalid(field, "a sata disk cannot be read-only; use bus virtio or scsi, or make it a cdrom")
    else:
        case.check_choice(field, "bus", bus, _BUSES)
    if disk.dedicated_io_thread and bus != "virtio":
        case.unsupported(
            f"{_ODD}[{i}]", f"an I/O thread of its own works on the virtio bus only, not on {bus}; change the bus"
        )


def _check_pci_address(case: Case, disk: Disk, i: int) -> None:
    field = f"{_ODD}.disk[{i}].pciAddress"
    if disk.disk is None or not (address := disk.disk.pci_address):
        return
    if disk.disk.bus != "virtio":
        case.invalid(field, "only a disk on the virtio bus has a PCI address; set bus: virtio")
    if not PCI_ADDRESS.fullmatch(address):
        case.invalid(field, f"{address!r} is not a PCI address; write it like 0000:81:01.0")


def _check_attributes(case: Case, disk: Disk, i: int) -> None:
    path, serial, policy = f"{_DISKS}[{i}]", disk.serial, disk.error_policy
    if disk.boot_order is not None and disk.boot_order < 1:
        case.invalid(f"{path}.bootOrder", f"boot order {disk.boot_order} is too low; start with 1")
    if serial and not _SERIAL.fullmatch(serial):
        case.invalid(f"{path}.serial", f"serial {serial!r} has other characters than letters, digits and _.+-")
    if len(serial) > _LONGEST_SERIAL:
        case.invalid(f"{path}.serial", f"the serial is longer than {_LONGEST_SERIAL} characters; shorten it")
    case.check_choice(f"{path}.cache", "cache mode", disk.cache, _CACHES)
    if disk.io not in _IO_MODES:
        case.unsupported(f"{_ODD}[{i}].io", f"I/O mode {disk.io!r} does not exist; use native or threads")
    if case.says(f"{path}.errorPolicy"):
        case.check_choice(f"{path}.errorPolicy", "error policy", policy, _ERROR_POLICIES)


def _check_block_size(case: Case, block: BlockSize, bus: str, path: str) -> None:
    custom = block.custom
    if custom is None:
        return
    if is_on(block.match_volume):
        case.invalid(path, "a block size is either custom or taken from the volume; remove custom or matchVolume")
        return
    logical, physical, granularity = custom.logical or 0, custom.physical or 0, custom.discard_granularity
    path = f"{path}.custom"
    if logical > physical:
        case.invalid(f"{path}.logical", f"logical block size {logical} is more than the physical {physical}; lower it")
    elif bus == "sata" and logical != _SMALLEST_BLOCK:
        case.invalid(f"{path}.logical", f"a sata disk has logical blocks of 512 bytes, not {logical}")
    elif granularity is not None and logical and granularity % logical:
        case.invalid(
            f"{path}.discardGranularity", f"{granularity} must be a multiple of the logical block size {logical}"
        )
    else:
        for kind, size in (("logical", logical), ("physical", physical)):
            if not _SMALLEST_BLOCK <= size <= _LARGEST_BLOCK or size & (size - 1):
                case.invalid(f"{path}.{kind}", f"block size {size} must be a power of two from 512 to {_LARGEST_BLOCK}")


def _check_boot_order(case: Case) -> None:
    """No two devices share a place in the boot order."""
    taken: dict[int, str] = {}
    for section, orders in (
        ("disks", [disk.boot_order for disk in case.devices.disks]),
        ("interfaces", [interface.boot_order for interface in case.devices.interfaces]),
    ):
        for i, order in enumerate(orders):
            path = f"domain.devices.{section}[{i}]"
            if order is None:
                continue
            if order < 1 and section == "interfaces":  # KubeVirt leaves the section out of this path
                case.whole.invalid(f"{case.path}[{i}].bootOrder", f"boot order {order} is too low; start with 1")
            elif order in taken:
                case.invalid(f"{path}.bootOrder", f"boot order {order} is already that of {taken[order]}; use another")
            taken.setdefault(order, case.at(path))


def _check_backing(case: Case) -> None:
    """Each disk shows a volume that it can show."""
    volumes = {volume.name: volume for volume in case.spec.volumes}
    for i, disk in enumerate(case.devices.disks):
        path, name, volume = f"{_DISKS}[{i}]", disk.name, volumes.get(disk.name)
        if volume is None:
            if disk.cdrom is None:
                place = case.at("volumes")
                case.invalid(f"{path}.name", f"disk {name!r} has no volume; add a volume of that name to {place}")
            else:
                case.needs_gate(f"{path}.name", "DeclarativeHotplugVolumes", f"the empty CD-ROM drive {name!r}")
            continue
        if disk.lun is not None and volume.persistent_volume_claim is None and volume.data_volume is None:
            message = f"a lun shows a whole device; volume {name!r} must be a persistentVolumeClaim or dataVolume"
            case.invalid(f"{path}.lun", message)
        if volume.downward_metrics is not None:
            if disk.disk is None:
                case.required(
                    f"{path}.disk", f"downwardMetrics volume {name!r} must be shown as a disk; set disk: {{}}"
                )
            elif disk.disk.bus not in ("", "virtio"):
                case.invalid(f"{path}.disk.bus", f"downwardMetrics volume {name!r} needs bus virtio")


def check_volumes_are_used(case: Case) -> None:
    """Each volume is shown to the guest; only for a VMI, as a VM's template may be ahead of its disks."""
    disks, filesystems = {d.name for d in case.devices.disks}, {f.name for f in case.devices.filesystems}
    for i, volume in enumerate(case.spec.volumes):
        name, path = volume.name, f"domain.volumes[{i}]"
        if volume.memory_dump is not None:
            continue
        if name not in disks and name not in filesystems:
            case.invalid(f"{path}.name", f"volume {name!r} is not used; add a disk or file system of that name")
        if volume.container_path is None:
            continue
        if name in disks:
            case.invalid(path, f"containerPath volume {name!r} must be shown as a file system, not as a disk")
        if name not in filesystems:
            case.invalid(path, f"containerPath volume {name!r} needs a file system in domain.devices.filesystems")
        if posixpath.normpath(volume.container_path.path).removeprefix("/var").startswith(_RESERVED_PATHS):
            case.invalid(f"{path}.containerPath.path", f"paths under {' and '.join(_RESERVED_PATHS)} are reserved")
