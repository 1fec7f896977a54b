"""Devices of the node inside the VM: GPUs, other host devices, and virtual functions of network cards."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from virtfleet.api.devices import GPU, VGPUDisplayOptions
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import EMULATED, AssignedDevice, Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.interfaces import pci_address
from virtfleet.domain.xml import add

# Devices of one list are attached in this order of kinds, and in the order of the list within a kind.
_KINDS = ("pci", "mdev", "usb", EMULATED)


def host_devices(devices: Element, vmi: VMI, context: Context) -> None:
    """Attach what the Pod was given, but for the `emulated` ones, which are not the node's."""
    generic = [
        (d, _assigned(context.host_devices, "hostDevices", d.name)) for d in vmi.spec.domain.devices.host_devices
    ]
    for device, assigned in sorted(generic, key=lambda pair: _KINDS.index(pair[1].kind)):
        prefix = "usb-host-" if assigned.kind == "usb" else "hostdevice-"
        if assigned.kind != EMULATED:
            _host_device(devices, assigned, f"{prefix}{device.name}")
    _gpus(devices, vmi, context)
    _virtual_functions(devices, vmi, context)


def emulated(vmi: VMI, context: Context) -> list[str]:
    """Aliases of the devices that the node only pretends to have; a VMM that can puts one of its own in their place."""
    devices = vmi.spec.domain.devices
    named = (
        *((f"hostdevice-{d.name}", context.host_devices.get(d.name)) for d in devices.host_devices),
        *((f"gpu-{d.name}", context.gpus.get(d.name)) for d in devices.gpus),
    )
    return [f"ua-{alias}" for alias, assigned in named if assigned and assigned.kind == EMULATED]


def _gpus(devices: Element, vmi: VMI, context: Context) -> None:
    first_mediated: Element | None = None
    gpus = [(gpu, _assigned(context.gpus, "gpus", gpu.name)) for gpu in vmi.spec.domain.devices.gpus]
    for gpu, assigned in sorted(gpus, key=lambda pair: _KINDS.index(pair[1].kind)):
        if assigned.kind == EMULATED:
            continue
        element = _host_device(devices, assigned, f"gpu-{gpu.name}")
        display = _display(gpu)
        if assigned.kind == "mdev":
            first_mediated = element if first_mediated is None else first_mediated
        # A whole GPU is a display only where that is said.
        if display and (assigned.kind == "mdev" if display.enabled is None else display.enabled):
            _show(element, framebuffer=display.ram_fb is None or display.ram_fb.enabled is not False)
    if first_mediated is not None and not any(_display(gpu) for gpu, _ in gpus):
        _show(first_mediated, framebuffer=True)


def _display(gpu: GPU) -> VGPUDisplayOptions | None:
    return gpu.virtual_gpu_options.display if gpu.virtual_gpu_options else None


def _show(element: Element, *, framebuffer: bool) -> None:
    element.set("display", "on")
    if framebuffer:
        element.set("ramfb", "on")


def _virtual_functions(devices: Element, vmi: VMI, context: Context) -> None:
    for interface in vmi.spec.domain.devices.interfaces:
        if not interface.sriov:
            continue
        address = context.sriov.get(interface.name)
        if not address:
            raise DomainError(f"interface {interface.name!r}: no virtual function was assigned to the Pod")
        element = _host_device(devices, AssignedDevice("pci", address), f"sriov-{interface.name}")
        if interface.pci_address:
            pci_address(element, interface.pci_address, f"interface {interface.name!r}")
        if interface.boot_order is not None:
            add(element, "boot", order=interface.boot_order)


def _assigned(devices: Mapping[str, AssignedDevice], field: str, name: str) -> AssignedDevice:
    device = devices.get(name)
    if device is None:
        raise DomainError(f"{field} {name!r}: no device was assigned to the Pod")
    if device.kind not in _KINDS:
        raise DomainError(f"{field} {name!r}: a device of kind {device.kind!r} cannot be passed through")
    return device


def _host_device(devices: Element, device: AssignedDevice, alias: str) -> Element:
    element = add(devices, "hostdev", type=device.kind)
    source = add(element, "source")
    match device.kind:
        case "pci":
            element.set("managed", "no")
            pci_address(source, device.address, alias)
        case "mdev":
            element.set("mode", "subsystem")
            element.set("model", "vfio-pci")
            add(source, "address", uuid=device.address)
        case "usb":
            element.set("mode", "subsystem")
            bus, _, number = device.address.partition(":")
            add(source, "address", bus=bus, device=number)
    add(element, "alias", name=f"ua-{alias}")
    return element
