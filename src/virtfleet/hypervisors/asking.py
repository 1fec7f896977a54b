"""How to see in a VMI that it asks for a feature: small predicates, from which `features` builds its table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from virtfleet.api import hotplug, names, traits
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import volumes

Asked = Callable[[VMI], object]


@cache
def said(field: str) -> Asked:
    """Whether anything is said in a field, other than that it is off; `[]` is each of a list."""
    steps = field.split(".")
    return lambda vmi: _said(vmi, steps)


def _said(value: Any, steps: list[str]) -> bool:
    if not steps or not value:
        return bool(value)
    name, each, _ = steps[0].partition("[]")
    inner = getattr(value, _attributes(value.__class__)[name])
    return any(_said(item, steps[1:]) for item in (inner if each else (inner,)))


@cache
def _attributes(view: Any) -> dict[str, str]:
    """Names of a view's attributes, by the names of its fields in the API."""
    return dict(zip(view.__struct_encode_fields__, view.__struct_fields__, strict=True))


def bus(name: str) -> Asked:
    return lambda vmi: any(traits.bus(disk) == name for disk in vmi.spec.domain.devices.disks)


def disk_image(vmi: VMI) -> bool:
    """Whether a disk is an image or a device, and not made from configuration."""
    own = {v.name for v in vmi.spec.volumes if not (volumes.config_kind(v) or volumes.seed(v))}
    return any(disk.name in own for disk in vmi.spec.domain.devices.disks)


def volume(*kinds: str) -> Asked:
    return lambda vmi: any(getattr(volume, kind) for volume in vmi.spec.volumes for kind in kinds)


def annotation(name: str) -> Asked:
    return lambda vmi: vmi.metadata.annotations.get(name)


def eviction(*strategies: str) -> Asked:
    return lambda vmi: vmi.spec.eviction_strategy in strategies


def plugged(vmi: VMI) -> bool:
    return bool(hotplug.wanted(vmi))


def unplugged(vmi: VMI) -> bool:
    """Whether an interface is to go. That one has come to a VM that runs, or was switched, cannot be seen."""
    return any(interface.state == "absent" for interface in vmi.spec.domain.devices.interfaces)


def block_size_of_volume(vmi: VMI) -> bool:
    sizes = [disk.block_size.match_volume for disk in vmi.spec.domain.devices.disks if disk.block_size]
    return any(size and size.enabled is not False for size in sizes)


def boot_order(vmi: VMI) -> bool:
    devices = vmi.spec.domain.devices
    orders = [disk.boot_order for disk in devices.disks] + [interface.boot_order for interface in devices.interfaces]
    return any(order is not None for order in orders)


def tags(vmi: VMI) -> bool:
    """Tags that the guest is not told."""
    devices = vmi.spec.domain.devices
    tagged: list[Any] = [*devices.gpus, *devices.host_devices]
    in_seed = any(volume.cloud_init_config_drive for volume in vmi.spec.volumes)
    tagged += [disk for disk in devices.disks if not (in_seed and disk.disk and disk.disk.pci_address)]
    tagged += [interface for interface in devices.interfaces if not (in_seed and interface.pci_address)]
    return any(device.tag for device in tagged)


def secure_boot(vmi: VMI) -> bool:
    firmware = vmi.spec.domain.firmware
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return efi is not None and efi.secure_boot is not False


def tpm(vmi: VMI) -> bool:
    tpm = vmi.spec.domain.devices.tpm
    return tpm is not None and tpm.enabled is not False


def cpu_model(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.model and cpu.model not in ("host-model", "host-passthrough"))


def cpu_hotplug(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.max_sockets and cpu.max_sockets > (cpu.sockets or 1))


def memory_hotplug(vmi: VMI) -> bool:
    memory = vmi.spec.domain.memory
    return bool(memory and memory.max_guest is not None and Quantity.parse(memory.max_guest) > traits.memory(vmi))


def credentials_by_agent(vmi: VMI) -> bool:
    credentials = vmi.spec.access_credentials
    keys = [c.ssh_public_key.propagation_method for c in credentials if c.ssh_public_key]
    return any(k and k.qemu_guest_agent for k in keys) or any(c.user_password for c in credentials)


def guest_agent(vmi: VMI) -> bool:
    return credentials_by_agent(vmi) or traits.probes_inside(vmi) > 0


def istio(vmi: VMI) -> bool:
    return str(vmi.metadata.annotations.get(names.ISTIO_INJECT)).lower() == "true"
