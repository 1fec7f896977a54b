"""Oracle VirtualBox 6.1 and later."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Descriptor, Events, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class VirtualBox(Announced):
    """VirtualBox."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtualbox",
        title="VirtualBox",
        overheads=Overheads.of(
            daemon="32Mi",
            vmm="60Mi",
            estimate="taken to be those of libvirt's QEMU driver",
        ),
        launcher_image="virt-launcher-virtualbox",
        events=Events.POLLED,
        uri="vbox:///session",
        daemon="virtvboxd",
        device="vboxdrv",
        processes=("VBoxHeadless",),
    )
    supports: ClassVar[Supports] = impossible(
        (
            "disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue",
            "VirtualBox has IDE, SATA, SCSI and floppy disks",
        ),
        ("cpu-model cpu-features numa realtime cpu-pinning", "libvirt's VirtualBox driver does not set it"),
        (
            "tpm watchdog panic rng vsock usb-redirection downward-metrics",
            "libvirt's VirtualBox driver has no such device",
        ),
        (
            "efi secure-boot acpi-tables ignition kernel-boot",
            "libvirt's VirtualBox driver boots BIOS and boot devices only",
        ),
        (
            "gpu host-device net-sriov",
            "libvirt's VirtualBox driver passes USB devices through, which a VMI cannot name",
        ),
        ("net-passt net-multiqueue", "VirtualBox has networks of its own"),
        ("live-migration", "libvirt's VirtualBox driver cannot migrate"),
        ("serial-console guest-agent", "libvirt's VirtualBox driver opens no consoles and knows no agent"),
        ("memory-hotplug hugepages balloon", "libvirt's VirtualBox driver sets memory of stopped VMs only"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's VirtualBox driver does not set it"),
    )
