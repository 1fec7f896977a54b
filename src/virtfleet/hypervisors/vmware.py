"""VMware Workstation and Player; the driver runs inside the client library and calls vmrun."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Connection, Descriptor, Events, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class Vmware(Announced):
    """VMware Workstation."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="vmware",
        title="VMware Workstation",
        overheads=Overheads.of(
            daemon="0",
            vmm="60Mi",
            estimate="the VMM is taken to need what QEMU does; the driver lives in the launcher",
        ),
        launcher_image="virt-launcher-vmware",
        connection=Connection.LIBRARY,
        events=Events.POLLED,
        uri="vmwarews:///session",
        device="vmmon",
        processes=("vmware-vmx",),
    )
    supports: ClassVar[Supports] = impossible(
        (
            "disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue",
            "VMware has SCSI, SATA, IDE and NVMe disks in vmdk files",
        ),
        ("container-disk claim ephemeral-disk", "disks are vmdk files"),
        ("filesystem", "libvirt's VMware driver shares no directories"),
        ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's VMware driver sets sockets and cores only"),
        (
            "watchdog panic rng vsock sound input usb-redirection downward-metrics",
            "libvirt's VMware driver writes no such device",
        ),
        (
            "boot-order secure-boot acpi-tables ignition kernel-boot",
            "libvirt's VMware driver chooses between BIOS and EFI only",
        ),
        ("gpu host-device net-sriov", "libvirt's VMware driver passes no devices through"),
        ("net-passt net-multiqueue", "VMware has networks of its own"),
        ("live-migration", "libvirt's VMware driver cannot migrate"),
        ("serial-console guest-agent", "libvirt's VMware driver opens no consoles and knows no agent"),
        ("memory-hotplug cpu-hotplug hugepages balloon", "libvirt's VMware driver cannot change a running VM"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's VMware driver does not set it"),
    )
