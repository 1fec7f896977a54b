"""bhyve, FreeBSD's hypervisor."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Descriptor, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class Bhyve(Announced):
    """bhyve."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="bhyve",
        title="bhyve",
        overheads=Overheads.of(
            daemon="32Mi",
            vmm="30Mi",
            estimate="the daemon as measured with libvirt's QEMU driver, the VMM half of QEMU: it has few devices",
        ),
        launcher_image="virt-launcher-bhyve",
        uri="bhyve:///system",
        daemon="virtbhyved",
        root=True,
        privileged=True,
        device="vmm",
        processes=("bhyve",),
    )
    supports: ClassVar[Supports] = impossible(
        ("disk-usb lun shareable-disk io-threads block-multiqueue", "bhyve has SATA, virtio and NVMe disks"),
        ("container-disk ephemeral-disk", "bhyve reads raw images only; the launcher makes none for it yet"),
        ("boot-order", "bhyve boots the first disk"),
        ("balloon memory-hotplug cpu-hotplug hugepages", "libvirt's bhyve driver cannot change a running VM"),
        ("cpu-model cpu-features numa realtime cpu-pinning", "libvirt's bhyve driver sets the topology only"),
        ("tpm watchdog panic vsock usb-redirection downward-metrics", "libvirt's bhyve driver has no such device"),
        ("secure-boot acpi-tables ignition kernel-boot", "libvirt's bhyve driver has its own loader, or EFI"),
        ("net-passt net-multiqueue net-sriov", "bhyve is attached to bridges"),
        ("live-migration", "libvirt's bhyve driver cannot migrate"),
        ("start-paused", "libvirt's bhyve driver cannot pause"),
        ("hyperv-enlightenments kvm-hidden sev tdx", "bhyve has no such thing"),
    )
