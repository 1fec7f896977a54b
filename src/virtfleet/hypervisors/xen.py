"""Xen, through libvirt's libxl driver."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Descriptor, Overheads
from virtfleet.hypervisors.support import Supports, impossible


class Xen(Announced):
    """Xen."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="xen",
        title="Xen",
        overheads=Overheads.of(
            daemon="32Mi",
            vmm="60Mi",
            estimate="taken to be those of libvirt's QEMU driver: QEMU is the device model of HVM guests",
        ),
        launcher_image="virt-launcher-xen",
        uri="xen:///system",
        daemon="virtxend",
        root=True,
        privileged=True,
        processes=("qemu-system", "qemu-dm"),
    )
    supports: ClassVar[Supports] = impossible(
        ("disk-virtio disk-sata disk-usb", "its disks are on the xen, ide and scsi buses"),
        ("lun shareable-disk io-threads block-multiqueue", "libxl has no such disks"),
        ("filesystem", "libxl shares no directories"),
        ("tpm watchdog panic sound vsock downward-metrics", "libvirt's Xen driver has no such device"),
        ("secure-boot", "secure boot is not supported on Xen"),
        ("net-passt net-multiqueue", "libvirt's Xen driver attaches to bridges only"),
        ("hyperv-enlightenments", "libxl takes only a part of the enlightenments"),
        ("cpu-model numa realtime", "libxl takes CPU features, not models"),
        ("memory-hotplug hugepages", "libxl has no such memory"),
        ("sev tdx kvm-hidden", "it is a feature of KVM"),
        ("guest-agent", "libvirt knows no guest agent on Xen"),
        ("ignition acpi-tables", "libxl cannot hand it to the guest"),
    )
