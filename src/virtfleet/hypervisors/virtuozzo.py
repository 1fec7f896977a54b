"""Virtuozzo, through its SDK."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Descriptor, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class Virtuozzo(Announced):
    """Virtuozzo."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtuozzo",
        title="Virtuozzo",
        overheads=Overheads.of(
            daemon="32Mi",
            vmm="60Mi",
            estimate="taken to be those of libvirt's QEMU driver",
        ),
        launcher_image="virt-launcher-virtuozzo",
        uri="vz:///system",
        daemon="virtvzd",
        root=True,
        privileged=True,
    )
    supports: ClassVar[Supports] = impossible(
        (
            "disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue",
            "Virtuozzo has IDE, SCSI and, before version 7, SATA disks",
        ),
        ("container-disk ephemeral-disk", "disks have Virtuozzo's own format"),
        ("filesystem", "VMs of Virtuozzo share no directories"),
        ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's Virtuozzo driver refuses it"),
        (
            "tpm watchdog panic rng vsock sound usb-redirection downward-metrics",
            "libvirt's Virtuozzo driver refuses the device",
        ),
        ("efi secure-boot acpi-tables ignition kernel-boot", "libvirt's Virtuozzo driver refuses other firmware"),
        ("gpu host-device net-sriov", "libvirt's Virtuozzo driver passes no devices through"),
        ("net-passt net-multiqueue", "libvirt's Virtuozzo driver attaches to networks and bridges only"),
        ("serial-console guest-agent", "libvirt's Virtuozzo driver opens no consoles and knows no agent"),
        ("memory-hotplug hugepages", "libvirt's Virtuozzo driver cannot add memory"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's Virtuozzo driver refuses it"),
    )
