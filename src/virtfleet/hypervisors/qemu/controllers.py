"""Controllers of a QEMU domain, and where its PCI devices sit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from virtfleet.api import names, traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add
from virtfleet.hypervisors.qemu.draft import Draft
from virtfleet.hypervisors.qemu.iothreads import threads

# Slots of the root complex that are taken: the host bridge, the VGA device, ICH9's sound and SATA.
_TAKEN_SLOTS = (0x00, 0x01, 0x1B, 0x1F)
_SLOTS = 0x20
_PORT = "pcie-root-port"
# Free ports, as many as KubeVirt leaves: guests that are small, to which each is a cost, have fewer.
_SMALL, _SPARE_OF_SMALL, _SPARE, _PORTS = 2 << 30, 3, 6, 16
_EXPRESS = re.compile(r"q35|^virt(-|$)")  # machines whose devices are on PCI Express


def controllers(draft: Draft) -> None:
    usb = "qemu-xhci" if _needs_usb(draft) else "none"
    add(draft.devices, "controller", type="usb", index=0, model=usb)
    # Disks are added to a running VM on the SCSI bus.
    if not draft.spec.disable_hotplug or any(traits.bus(disk) == "scsi" for disk in draft.spec.disks):
        scsi = draft.virtio if draft.architecture.pci else "virtio-scsi"
        _drive(add(draft.devices, "controller", type="scsi", index=0, model=scsi), draft, **_scsi_threads(draft))
    disabled = draft.vmi.metadata.annotations.get(names.DISABLE_PCI_HOLE64, "").lower() == "true"
    if draft.architecture.pc and disabled:
        root = add(draft.devices, "controller", type="pci", index=0, model="pcie-root")
        add(root, "pcihole64", 0, unit="KiB")
    if traits.serial_console(draft.vmi):
        _drive(add(draft.devices, "controller", type="virtio-serial", index=0, model=draft.virtio), draft)


def _needs_usb(draft: Draft) -> bool:
    if not draft.architecture.pc:
        return draft.architecture.pci  # arm64 always has it, s390x never
    return (
        any(wanted.bus in ("usb", "") for wanted in draft.spec.inputs)
        or any(disk.disk and disk.disk.bus == "usb" for disk in draft.spec.disks)
        or draft.spec.client_passthrough is not None
        or any(device.kind == "usb" for device in draft.context.host_devices.values())
    )


def _scsi_threads(draft: Draft) -> dict[str, int]:
    """An I/O thread for the controller, where one of its disks asks for a thread: SCSI disks cannot have their own."""
    shared = threads(draft.vmi).shared
    disks = draft.spec.disks
    if not shared or not any(traits.bus(disk) == "scsi" and disk.dedicated_io_thread for disk in disks):
        return {}
    used = sum(1 for disk in disks if traits.bus(disk) == "virtio" and not disk.dedicated_io_thread)
    return {"iothread": used % shared + 1, "queues": draft.topology.vcpus}


def _drive(controller: Element, draft: Draft, **settings: int) -> None:
    if settings or draft.iommu:
        add(controller, "driver", **settings, iommu=draft.iommu)


def place_on_root_complex(draft: Draft) -> None:
    """Give every PCI device a slot of the root complex, where the VMI asks for that instead of a bus for each."""
    wanted = draft.vmi.metadata.annotations.get(names.PLACE_PCI_DEVICES_ON_ROOT_COMPLEX) == "true"
    if not wanted or not draft.architecture.pci:
        return
    slots = (slot for slot in range(_SLOTS) if slot not in _TAKEN_SLOTS)
    for device in _pci_devices(draft.devices):
        address = device.find("address")
        if address is not None and address.get("type") == "pci":
            continue
        slot = next(slots, None)
        if slot is None:
            raise DomainError("no slot is left on the root complex for all PCI devices")
        add(device, "address", type="pci", domain="0x0000", bus="0x00", slot=f"0x{slot:02x}", function="0x0")


def make_room(domain: Element, vmi: VMI) -> None:
    """Free PCI Express ports, beside one for each device that has none yet: libvirt adds no port to what runs.

    Ports that the guest had are in the document already, and count: a VM has no more of them from start to start.
    """
    devices, kind = domain.find("devices"), domain.find("os/type")
    machine = kind.get("machine", "") if kind is not None else ""
    on_root = vmi.metadata.annotations.get(names.PLACE_PCI_DEVICES_ON_ROOT_COMPLEX) == "true"
    if devices is None or on_root or vmi.spec.domain.devices.disable_hotplug or not _EXPRESS.search(machine):
        return
    there = [c for c in devices.findall("controller[@type='pci']") if c.get("index")]
    ports = [c for c in there if c.get("model") == _PORT]
    seated = sum(1 for device in _pci_devices(devices) if device.get("type") != "pci")
    taken = {int(c.get("index", "0")) for c in there}
    free = (index for index in range(1, 256) if index not in taken)
    small = traits.whole_bytes(traits.memory(vmi)) <= _SMALL
    wanted = seated + _SPARE_OF_SMALL if small else max(seated + _SPARE, _PORTS)
    for _ in range(wanted - len(ports)):
        add(devices, "controller", type="pci", model=_PORT, index=next(free))


def _pci_devices(devices: Element) -> Iterator[Element]:
    yield from devices.findall("interface")
    yield from devices.findall("hostdev[@type='pci']")
    yield from (c for c in devices.findall("controller") if c.get("model") not in ("pci-root", "pcie-root"))
    yield from (d for d in devices.findall("disk") if d.find("target[@bus='virtio']") is not None)
    yield from devices.findall("input[@bus='virtio']")
    for tag in ("watchdog", "rng", "memballoon"):
        yield from devices.findall(tag)
