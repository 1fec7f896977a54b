"""What differs between the machine architectures that QEMU emulates."""

from __future__ import annotations

import msgspec


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One machine architecture, as QEMU and libvirt see it."""

    name: str
    os_type: str
    machine: str
    firmware_dir: str
    pci_virtio: bool = True
    """Virtio devices sit on PCI and come in a transitional and a modern form."""
    usb_always: bool = False
    cpu_hotplug: bool = True
    smbios: bool = True
    option_roms: bool = True
    disables_mpx: bool = False
    """CPU models of libvirt may have the feature mpx, which newer CPUs of that model lack."""
    debug_console: bool = False
    vmport: bool = False
    pci_hole64: bool = False
    pcie: bool = True
    memfd: bool = True
    """Memory in a memfd needs a NUMA topology, which not every architecture has."""
    watchdog: str = ""

    def virtio(self, transitional: bool | None) -> str:
        """The model of virtio devices."""
        if not self.pci_virtio:
            return "virtio"
        return "virtio-transitional" if transitional else "virtio-non-transitional"

    def scsi(self, virtio: str) -> str:
        return virtio if self.pci_virtio else "virtio-scsi"


_ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture(
            name="amd64",
            os_type="x86_64",
            machine="q35",
            firmware_dir="/usr/share/edk2/ovmf",
            disables_mpx=True,
            debug_console=True,
            vmport=True,
            pci_hole64=True,
            watchdog="i6300esb",
        ),
        Architecture(
            name="arm64",
            os_type="aarch64",
            machine="virt",
            firmware_dir="/usr/share/AAVMF",
            usb_always=True,
            cpu_hotplug=False,
        ),
        Architecture(
            name="s390x",
            os_type="s390x",
            machine="s390-ccw-virtio",
            firmware_dir="",
            pci_virtio=False,
            smbios=False,
            option_roms=False,
            pcie=False,
            memfd=False,
            watchdog="diag288",
        ),
    )
}


def architecture(name: str) -> Architecture:
    """The architecture of a VMI; amd64 where none is given, or one that QEMU is not built for here."""
    return _ARCHITECTURES.get(name, _ARCHITECTURES["amd64"])
