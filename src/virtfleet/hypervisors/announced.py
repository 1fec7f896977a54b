"""Hypervisors whose names and limits are known, but that cannot run VMs yet: their descriptions, and nothing else.

One that is driven gets a file of its own, in which it fills the methods of the contract.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Hypervisor
from virtfleet.hypervisors.plain import LIKE_QEMU
from virtfleet.hypervisors.support import Supports, impossible


class Announced(Hypervisor):
    """A hypervisor that is described, so that its name and its limits are known, but cannot run VMs yet."""

    @property
    def refusal(self) -> str:
        name = self.descriptor.name
        return f"VMs cannot run on hypervisor {name} yet: VirtFleet knows what it can do, but does not drive it"

    def build(self, vmi: VMI, context: Context) -> Element:
        raise DomainError(self.refusal)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        raise DomainError(self.refusal)


class Xen(Announced):
    """Xen, through libvirt's libxl driver."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="xen",
        title="Xen",
        overheads=LIKE_QEMU,  # QEMU is the device model of HVM guests
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
