"""Rules for disks, and for how disks, file systems and volumes belong together."""

from __future__ import annotations

import posixpath
import re

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine, is_on
from virtfleet.admission.names import dns_label_error
from virtfleet.admission.sections import Section, read

PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_TARGETS = ("disk", "lun", "cdrom")
_BUSES = ("virtio", "scsi", "sata", "usb")
_CACHES = ("", "none", "writethrough", "writeback")
_IO_MODES = ("", "native", "threads")
_ERROR_POLICIES = ("stop", "ignore", "report", "enospace")
_SERIAL = re.compile(r"[A-Za-z0-9_.+-]+")
_LONGEST_SERIAL = 256
_SMALLEST_BLOCK, _LARGEST_BLOCK = 512, 2 * 1024**2
_RESERVED_PATHS = ("/run/kubevirt", "/run/libvirt")  # also as /var/run


def check(m: Machine, found: Findings) -> None:
    base = m.at("domain.devices.disks")
    # KubeVirt appends the path once more for some rules; tools look for it.
    odd = f"{base}.domain.devices.disks"
    first: dict[str, int] = {}
    for i, disk in enumerate(m.disks):
        name, path = disk.get("name") or "", f"{base}[{i}]"
        if name in first:
            found.invalid(f"{path}.name", f"disks {first[name]} and {i} are both called {name!r}; rename one")
        first.setdefault(name, i)
        if why := dns_label_error(name):
            found.invalid(f"{odd}[{i}].name", f"disk name {name!r} must be usable as a container name: {why}")
        targets = [target for target in _TARGETS if disk.get(target) is not None]
        if len(targets) > 1:
            found.invalid(path, f"a disk is one of disk, lun and cdrom, not {' and '.join(targets)}; keep one")
        target = targets[0] if targets else ""
        bus = read(disk, target).get("bus") or "" if target else ""
        _check_bus(disk, target, bus, path, f"{odd}[{i}]", found)
        _check_pci_address(disk, f"{odd}.disk[{i}]", found)
        _check_attributes(disk, path, f"{odd}[{i}]", found)
        _check_block_size(read(disk, "blockSize"), bus, f"{path}.blockSize", found)
    _check_boot_order(m, found)
    _check_backing(m, found)
    _check_reservation(m, found)


def _check_bus(disk: Section, target: str, bus: str, path: str, odd: str, found: Findings) -> None:
    field = f"{path}.{target}.bus"
    if not bus:
        return
    if bus == "ide":
        found.invalid(field, "bus ide does not exist on this machine type; use sata")
    elif bus not in _BUSES:
        found.invalid(field, f"bus {bus!r} does not exist; use one of {', '.join(_BUSES)}")
    elif bus == "virtio" and target == "cdrom":
        found.invalid(field, "a CD-ROM cannot be on the virtio bus; use sata or scsi")
    elif bus == "sata" and target == "disk" and disk["disk"].get("readonly"):
        found.invalid(field, "a sata disk cannot be read-only; use bus virtio or scsi, or make it a cdrom")
    if disk.get("dedicatedIOThread") and bus != "virtio":
        found.unsupported(odd, f"an I/O thread of its own works on the virtio bus only, not on {bus}; change the bus")


def _check_pci_address(disk: Section, odd: str, found: Findings) -> None:
    address = read(disk, "disk").get("pciAddress")
    if not address:
        return
    if disk["disk"].get("bus") != "virtio":
        found.invalid(f"{odd}.pciAddress", "only a disk on the virtio bus has a PCI address; set bus: virtio")
    if not PCI_ADDRESS.fullmatch(address):
        found.invalid(f"{odd}.pciAddress", f"{address!r} is not a PCI address; write it like 0000:81:01.0")


def _check_attributes(disk: Section, path: str, odd: str, found: Findings) -> None:
    order = disk.get("bootOrder")
    if order is not None and order < 1:
        found.invalid(f"{path}.bootOrder", f"boot order {order} is too low; start with 1")
    serial = disk.get("serial") or ""
    if serial and not _SERIAL.fullmatch(serial):
        found.invalid(f"{path}.serial", f"serial {serial!r} has other characters than letters, digits and _.+-")
    if len(serial) > _LONGEST_SERIAL:
        found.invalid(f"{path}.serial", f"the serial is longer than {_LONGEST_SERIAL} characters; shorten it")
    cache = disk.get("cache") or ""
    if cache not in _CACHES:
        found.invalid(f"{path}.cache", f"cache mode {cache!r} does not exist; use one of {', '.join(_CACHES[1:])}")
    mode = disk.get("io") or ""
    if mode not in _IO_MODES:
        found.unsupported(f"{odd}.io", f"I/O mode {mode!r} does not exist; use native or threads")
    policy = disk.get("errorPolicy")
    if policy is not None and policy not in _ERROR_POLICIES:
        known = ", ".join(_ERROR_POLICIES)
        found.invalid(f"{path}.errorPolicy", f"error policy {policy!r} does not exist; use one of {known}")


def _check_block_size(block: Section, bus: str, path: str, found: Findings) -> None:
    custom = block.get("custom")
    if custom is None:
        return
    if is_on(block, "matchVolume"):
        found.invalid(path, "a block size is either custom or taken from the volume; remove custom or matchVolume")
        return
    logical, physical = custom.get("logical") or 0, custom.get("physical") or 0
    granularity = custom.get("discardGranularity")
    if logical > physical:
        found.invalid(
            f"{path}.custom.logical", f"logical block size {logical} is more than the physical {physical}; lower it"
        )
    elif bus == "sata" and logical != _SMALLEST_BLOCK:
        found.invalid(f"{path}.custom.logical", f"a sata disk has logical blocks of 512 bytes, not {logical}")
    elif granularity is not None and logical and granularity % logical:
        found.invalid(
            f"{path}.custom.discardGranularity", f"{granularity} must be a multiple of the logical block size {logical}"
        )
    else:
        for kind, size in (("logical", logical), ("physical", physical)):
            if not _SMALLEST_BLOCK <= size <= _LARGEST_BLOCK or size & (size - 1):
                found.invalid(
                    f"{path}.custom.{kind}", f"block size {size} must be a power of two from 512 to {_LARGEST_BLOCK}"
                )


def _check_boot_order(m: Machine, found: Findings) -> None:
    """No two devices share a place in the boot order."""
    taken: dict[int, str] = {}
    for section, devices in (("disks", m.disks), ("interfaces", m.interfaces)):
        for i, device in enumerate(devices):
            order, path = device.get("bootOrder"), m.at(f"domain.devices.{section}[{i}]")
            if order is None:
                continue
            if order < 1 and section == "interfaces":  # KubeVirt leaves the section out of this path
                found.invalid(f"{m.path}[{i}].bootOrder", f"boot order {order} is too low; start with 1")
            elif order in taken:
                found.invalid(f"{path}.bootOrder", f"boot order {order} is already that of {taken[order]}; use another")
            taken.setdefault(order, path)


def _check_backing(m: Machine, found: Findings) -> None:
    """Each disk shows a volume that it can show."""
    volumes = {v.get("name"): v for v in m.volumes}
    for i, disk in enumerate(m.disks):
        path, name = m.at(f"domain.devices.disks[{i}]"), disk.get("name")
        volume = volumes.get(name)
        if volume is None:
            if disk.get("cdrom") is None:
                found.invalid(
                    f"{path}.name", f"disk {name!r} has no volume; add a volume of that name to {m.at('volumes')}"
                )
            elif not m.enabled("DeclarativeHotplugVolumes"):
                found.gate_is_off(f"{path}.name", "DeclarativeHotplugVolumes", f"the empty CD-ROM drive {name!r}")
            continue
        claim = volume.get("persistentVolumeClaim") is not None or volume.get("dataVolume") is not None
        if disk.get("lun") is not None and not claim:
            found.invalid(
                f"{path}.lun",
                f"a lun shows a whole device; volume {name!r} must be a persistentVolumeClaim or dataVolume",
            )
        if volume.get("downwardMetrics") is not None:
            if disk.get("disk") is None:
                found.required(
                    f"{path}.disk", f"downwardMetrics volume {name!r} must be shown as a disk; set disk: {{}}"
                )
            elif disk["disk"].get("bus") not in (None, "", "virtio"):
                found.invalid(f"{path}.disk.bus", f"downwardMetrics volume {name!r} needs bus virtio")


def _check_reservation(m: Machine, found: Findings) -> None:
    if not m.cluster.persistent_reservation and any(read(disk, "lun").get("reservation") for disk in m.disks):
        found.gate_is_off(m.at("domain.devices.disks.luns.reservation"), "PersistentReservation", "lun.reservation")


def check_volumes_are_used(m: Machine, found: Findings) -> None:
    """Each volume is shown to the guest; only for a VMI, as a VM's template may be ahead of its disks."""
    shown = {kind: {d.get("name") for d in m.devices.get(kind) or ()} for kind in ("disks", "filesystems")}
    for i, volume in enumerate(m.volumes):
        name, path = volume.get("name"), m.at(f"domain.volumes[{i}]")
        if volume.get("memoryDump") is not None:
            continue
        if name not in shown["disks"] and name not in shown["filesystems"]:
            found.invalid(f"{path}.name", f"volume {name!r} is not used; add a disk or file system of that name")
        container = volume.get("containerPath")
        if container is None:
            continue
        if name in shown["disks"]:
            found.invalid(path, f"containerPath volume {name!r} must be shown as a file system, not as a disk")
        if name not in shown["filesystems"]:
            found.invalid(path, f"containerPath volume {name!r} needs a file system in domain.devices.filesystems")
        if posixpath.normpath(container.get("path") or "").removeprefix("/var").startswith(_RESERVED_PATHS):
            found.invalid(f"{path}.containerPath.path", f"paths under {' and '.join(_RESERVED_PATHS)} are reserved")
