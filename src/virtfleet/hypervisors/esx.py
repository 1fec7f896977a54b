"""VMware ESX and vCenter; libvirt's driver talks to them over HTTPS, so a Pod here is a proxy with credentials."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Connection, Descriptor, Events, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class Esx(Announced):
    """VMware ESX."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="esx",
        title="VMware ESX",
        overheads=Overheads.of(
            daemon="0",
            vmm="0",
            estimate="VM and VMM run on another machine; the driver lives in the launcher",
        ),
        launcher_image="virt-launcher-esx",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="esx://{host}",
    )
    supports: ClassVar[Supports] = impossible(
        (
            "disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue",
            "ESX has SCSI, SATA, IDE and NVMe disks in vmdk files",
        ),
        ("claim container-disk ephemeral-disk", "disks are vmdk files in a datastore of ESX"),
        ("filesystem", "ESX shares no directories through libvirt"),
        ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's ESX driver sets sockets and cores only"),
        (
            "watchdog panic rng vsock sound input usb-redirection downward-metrics",
            "libvirt's ESX driver writes no such device",
        ),
        (
            "boot-order secure-boot acpi-tables ignition kernel-boot",
            "libvirt's ESX driver chooses between BIOS and EFI only",
        ),
        ("gpu host-device net-sriov", "libvirt's ESX driver passes no devices through"),
        ("net-bridge net-masquerade net-passt net-multiqueue", "networks are those of ESX"),
        ("serial-console guest-agent", "libvirt's ESX driver opens no consoles and knows no agent"),
        ("memory-hotplug cpu-hotplug hugepages", "libvirt's ESX driver cannot attach anything to a running VM"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's ESX driver does not set it"),
    )
