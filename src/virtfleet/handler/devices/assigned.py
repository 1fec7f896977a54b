"""Which devices of the node the kubelet gave to a launcher's Pod, by what device plugins told its container. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from virtfleet.api.devices import GPU, HostDevice
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import EMULATED, AssignedDevice
from virtfleet.kube.deviceplugin import MDEV, PCI, PRETEND, USB, variable

_KINDS = {PCI: "pci", MDEV: "mdev", USB: "usb", PRETEND: EMULATED}


def environment(content: bytes) -> dict[str, str]:
    """From /proc/<pid>/environ."""
    pairs = (entry.partition("=") for entry in content.decode(errors="replace").split("\0") if entry)
    return {name: value for name, _, value in pairs}


def assigned(vmi: VMI, variables: Mapping[str, str]) -> tuple[dict[str, AssignedDevice], dict[str, AssignedDevice]]:
    """Devices for `gpus` and for `hostDevices`, by their names. Each address goes to one of them."""
    pools: dict[str, list[AssignedDevice]] = defaultdict(list)
    devices = vmi.spec.domain.devices
    wanted: list[GPU | HostDevice] = [*devices.gpus, *devices.host_devices]
    for resource in {device.device_name for device in wanted if device.device_name}:
        for prefix, kind in _KINDS.items():
            addresses = variables.get(variable(prefix, resource), "")
            pools[resource] += [AssignedDevice(kind, a.strip()) for a in addresses.split(",") if a.strip()]
    return _hand_out(devices.gpus, pools), _hand_out(devices.host_devices, pools)


def _hand_out(
    wanted: Iterable[GPU | HostDevice], pools: Mapping[str, list[AssignedDevice]]
) -> dict[str, AssignedDevice]:
    handed_out = {}
    for device in wanted:
        if pool := pools.get(device.device_name):
            handed_out[device.name] = pool.pop(0)
    return handed_out
