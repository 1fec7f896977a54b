"""What a domain document depends on beyond the VMI: settings of the cluster and facts of the node.

Builders are pure, so whatever must be looked up (is this claim a block device, which PCI address did the device plugin
hand out) is looked up by the caller and handed in here.
"""

from __future__ import annotations

import msgspec


class Smbios(msgspec.Struct, frozen=True):
    """Identity that guests read from SMBIOS."""

    manufacturer: str = "KubeVirt"
    family: str = "KubeVirt"
    product: str = "None"
    sku: str = ""
    version: str = ""


class NumaCell(msgspec.Struct, frozen=True):
    """A NUMA node of the host: its CPUs with their thread siblings, and its distances to other nodes."""

    id: int
    cpus: tuple[tuple[int, tuple[int, ...]], ...]
    distances: tuple[tuple[int, int], ...] = ()


EMULATED = "emulated"  # a device that the node only pretends to have, which the VMM has to emulate


class AssignedDevice(msgspec.Struct, frozen=True):
    """A device of the node that the kubelet gave to the Pod. `kind` is pci, mdev, usb or emulated."""

    kind: str
    address: str


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The libvirt and firmware that are really there."""

    libvirt_version: int = 0
    """As libvirt counts: 9.0.0 is 9000000."""
    firmware: frozenset[str] = frozenset()
    """Firmware files that exist; empty where that is not known."""
    machines: frozenset[str] = frozenset()
    """Machine types that exist; empty where that is not known."""
    vhost_net: bool = True


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the cluster and facts of the node."""

    # The cluster.
    emulated: bool = False
    """CPUs are emulated in software, because the hypervisor's device does not work here and that is allowed."""
    smbios: Smbios = Smbios()
    balloon_period: int = 10
    free_page_reporting: bool = True
    serial_console_log: bool = True
    bochs_for_efi: bool = True
    firmware_autoselection: bool = False
    firmware_dir: str = ""
    """Directory of the EFI firmware; the architecture's own where empty."""
    attachments: dict[str, str] = {}
    """How network binding plugins attach interfaces to the domain, by name of the plugin."""
    verbose: bool = False

    # The node.
    block_volumes: frozenset[str] = frozenset()
    """Volumes whose claim is a block device."""
    preallocated_volumes: frozenset[str] = frozenset()
    """Volumes whose space must not be given back by discarding."""
    disk_formats: dict[str, str] = {}
    """Format of the image in a containerDisk, by volume; qcow2 where unknown."""
    gpus: dict[str, AssignedDevice] = {}
    """Devices for `gpus`, by name in the VMI."""
    host_devices: dict[str, AssignedDevice] = {}
    """Devices for `hostDevices`, by name in the VMI."""
    sriov: dict[str, str] = {}
    """PCI addresses of virtual functions, by interface."""
    bridges: dict[str, str] = {}
    """Bridge of the Pod that an interface joins, by interface, where it is not the first network's."""
    taps: dict[str, str] = {}
    """Tap device of each interface."""
    cpus: tuple[int, ...] = ()
    """Physical CPUs of the Pod."""
    cells: tuple[NumaCell, ...] = ()
    host: Host = Host()
    """What the launcher finds around it."""

    @property
    def direct_memory_access(self) -> bool:
        """Whether a device of the node writes into the guest's memory, all of which must then be locked."""
        assigned = (*self.gpus.values(), *self.host_devices.values())
        return bool(self.sriov) or any(device.kind in ("pci", "mdev") for device in assigned)
