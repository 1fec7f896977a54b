"""Devices of the node that VMs may have: the common ones of every VM, and those that the administrator permits.

Each kind of device is a source: it lists what the node has of one resource at this moment, by reading /dev and /sys.
Discovery is by the directory that is handed in as the node's root, so that a tree of files can stand for a machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from virtfleet.api import names
from virtfleet.api.configuration import PermittedHostDevices, USBSelector
from virtfleet.hypervisors import registry
from virtfleet.kube.deviceplugin import MDEV, PCI, USB, variable

_VFIO = "/dev/vfio/vfio"

# Devices that VMs share: as many of them are offered as VMs may be here.
_SHARED = {
    "tun": "/dev/net/tun",
    "vhost-net": "/dev/vhost-net",
    "vhost-vsock": "/dev/vhost-vsock",
    "sev": "/dev/sev",
    "fuse": "/dev/fuse",
}
_LOADED = ("vhost-vsock",)  # of these, whose nodes may be there before their modules


@dataclass(frozen=True, slots=True)
class Unit:
    """One device as it can be handed out."""

    healthy: bool
    nodes: tuple[str, ...]
    """Device nodes that the container gets, under the same path."""
    address: str = ""
    """What the container is told of it."""
    numa: int | None = None


Units = dict[str, Unit]


@dataclass(frozen=True, slots=True)
class Source:
    """A resource that this node may have. `variable` is the one that containers find addresses in."""

    resource: str
    units: Callable[[], Units]
    variable: str = ""


class Modules:
    """Has the kernel load the modules of devices that need one, which it does by itself when their nodes are opened."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._asked: set[str] = set()

    def loaded(self, name: str) -> bool:
        """Whether there is a driver behind a device's node. A kernel that cannot load it is not asked again.

        Where the kernel keeps the vsock of each Pod apart, a handler reaches no guest, and there might as well be none.
        """
        if name not in _LOADED:
            return True
        if _text(self._root / "proc/sys/net/vsock/ns_mode") == "local":
            return False
        driver = self._root / "sys/class/misc" / name
        if not driver.exists() and name not in self._asked:
            self._asked.add(name)
            with suppress(OSError):
                os.close(os.open(self._root / _SHARED[name].lstrip("/"), os.O_RDWR | os.O_CLOEXEC))
        return driver.exists()


def shared(root: Path, count: int, works: Callable[[str], bool], without: Collection[str] = ()) -> Iterator[Source]:
    """The devices that every VM needs, as far as this node has them. `works` is asked about each by its name."""
    hypervisors = {d.device for name in registry.names() if (d := registry.get(name).descriptor).device}
    for name, path in {**_SHARED, **{device: f"/dev/{device}" for device in hypervisors}}.items():
        if name not in without and (root / path.lstrip("/")).exists():
            yield Source(names.DEVICE_PREFIX + name, partial(_shares, root, name, path, count, works))


def _shares(root: Path, name: str, path: str, count: int, works: Callable[[str], bool]) -> Units:
    unit = Unit((root / path.lstrip("/")).exists() and works(name), (path,))
    return {f"{name}{number}": unit for number in range(count)}


def permitted(root: Path, wanted: PermittedHostDevices | None) -> Iterator[Source]:
    """What the administrator permits and no other device plugin offers."""
    if wanted is None:
        return
    by_resource: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pci in wanted.pci_host_devices:
        if not pci.external_resource_provider:
            by_resource[PCI, pci.resource_name].append(pci.pci_vendor_selector.lower())
    for mdev in wanted.mediated_devices:
        if not mdev.external_resource_provider:
            by_resource[MDEV, mdev.resource_name].append(_type_name(mdev.mdev_name_selector))
    for (kind, resource), selectors in by_resource.items():
        bus, identity = ("pci", _pci) if kind == PCI else ("mdev", _mediated)
        yield Source(resource, partial(_grouped, root, bus, identity, selectors), variable(kind, resource))
    for usb in wanted.usb:
        if not usb.external_resource_provider and usb.selectors:
            name = usb.resource_name
            yield Source(name, partial(_usb, root, name, usb.selectors), variable(USB, name))


def _grouped(root: Path, bus: str, identity: Callable[[Path], str], selectors: Collection[str]) -> Units:
    """Devices that VFIO has, by IOMMU group: those of one group go to one VM."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for device in sorted((root / "sys/bus" / bus / "devices").glob("*")):
        if (kind := identity(device)) and kind in selectors:
            groups[_target(device / "iommu_group")].append(device)
    return {group: _vfio(root, group, devices) for group, devices in groups.items() if group}


def _pci(device: Path) -> str:
    """Vendor and product of a PCI device; nothing of one that another driver has."""
    own = _target(device / "driver") == "vfio-pci"
    return f"{_hex(device / 'vendor')}:{_hex(device / 'device')}" if own else ""


def _mediated(device: Path) -> str:
    return _type_name(_text(device / "mdev_type/name") or _target(device / "mdev_type"))


def _vfio(root: Path, group: str, devices: list[Path]) -> Unit:
    node = f"/dev/vfio/{group}"
    numa = _text(devices[0] / "numa_node")
    return Unit(
        healthy=(root / node.lstrip("/")).exists(),
        nodes=(_VFIO, node),
        address=",".join(device.name for device in devices),
        numa=int(numa) if numa.isdecimal() else None,
    )


def _usb(root: Path, resource: str, selectors: Collection[USBSelector]) -> Units:
    """Sets of USB devices, one of each selector; each set goes to one VM."""
    by_selector: list[list[Path]] = [[] for _ in selectors]
    for device in sorted((root / "sys/bus/usb/devices").glob("*")):
        identity = (_text(device / "idVendor").lower(), _text(device / "idProduct").lower())
        for devices, selector in zip(by_selector, selectors, strict=True):
            if identity == (selector.vendor.lower(), selector.product.lower()):
                devices.append(device)
                break
    name = resource.rpartition("/")[2]
    return {f"{name}-{n}": _usb_set(root, devices) for n, devices in enumerate(zip(*by_selector, strict=False))}


def _usb_set(root: Path, devices: Collection[Path]) -> Unit:
    numbers = [(int(_text(d / "busnum")), int(_text(d / "devnum"))) for d in devices]
    nodes = tuple(f"/dev/bus/usb/{bus:03}/{number:03}" for bus, number in numbers)
    return Unit(
        healthy=all((root / node.lstrip("/")).exists() for node in nodes),
        nodes=nodes,
        address=",".join(f"{bus}:{number}" for bus, number in numbers),
    )


def _type_name(name: str) -> str:
    return name.replace(" ", "_")


def _hex(file: Path) -> str:
    return _text(file).removeprefix("0x").lower()


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""


def _target(link: Path) -> str:
    """The name of what a link points to."""
    with suppress(OSError):
        return link.readlink().name
    return ""
