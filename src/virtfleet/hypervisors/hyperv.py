"""Hyper-V hosts; libvirt's driver talks to them over WS-Management, so a Pod here is a proxy with credentials."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Connection, Descriptor, Events, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class HyperV(Announced):
    """Microsoft Hyper-V."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="hyperv",
        title="Microsoft Hyper-V",
        overheads=Overheads.of(
            daemon="0",
            vmm="0",
            estimate="VM and VMM run on another machine; the driver lives in the launcher",
        ),
        launcher_image="virt-launcher-hyperv",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="hyperv://{host}",
    )
    supports: ClassVar[Supports] = impossible(
        (
            "disk-virtio disk-sata disk-usb lun shareable-disk io-threads block-multiqueue",
            "Hyper-V has IDE and SCSI disks in vhdx files",
        ),
        ("claim container-disk ephemeral-disk", "disks are vhdx files of the Hyper-V host"),
        ("filesystem", "Hyper-V shares no directories through libvirt"),
        ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's Hyper-V driver does not set it"),
        (
            "tpm watchdog panic rng vsock sound input usb-redirection downward-metrics",
            "libvirt's Hyper-V driver reports such devices but adds none",
        ),
        ("acpi-tables ignition kernel-boot boot-order", "libvirt's Hyper-V driver does not set it"),
        ("gpu host-device net-sriov", "libvirt's Hyper-V driver passes no devices through"),
        ("net-bridge net-masquerade net-passt net-multiqueue", "networks are virtual switches of the Hyper-V host"),
        ("live-migration", "libvirt's Hyper-V driver cannot migrate"),
        ("serial-console graphics", "libvirt's Hyper-V driver has screenshots only"),
        ("memory-hotplug hugepages", "libvirt's Hyper-V driver cannot add memory"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock", "Hyper-V decides on it"),
    )
