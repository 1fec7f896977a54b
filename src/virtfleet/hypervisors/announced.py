"""Hypervisors whose names and limits are known, but that cannot run VMs yet: their descriptions, and nothing else.

One that is driven gets a file of its own, in which it fills the methods of the contract.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors.base import (
    Connection,
    DaemonPlan,
    DaemonSettings,
    Descriptor,
    Events,
    Hypervisor,
    Overheads,
)
from virtfleet.hypervisors.containers import IMPOSSIBLE_IN_CONTAINERS
from virtfleet.hypervisors.support import Supports, impossible

_LIKE_QEMU = Overheads(daemon="32Mi", vmm="60Mi", estimate="taken to be those of libvirt's QEMU driver")
_ELSEWHERE = Overheads(
    daemon="0", vmm="0", estimate="VM and VMM run on another machine; the driver lives in the launcher"
)
# Features that libvirt's simpler drivers for machines lack alike, with the reason; the driver's name goes into it.
_DRIVERS_LACK = (
    ("disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue", "libvirt's {} driver has no such disks"),
    ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's {} driver sets the number of CPUs only"),
    ("watchdog panic rng vsock usb-redirection downward-metrics", "libvirt's {} driver adds no such device"),
    ("acpi-tables ignition kernel-boot", "libvirt's {} driver leaves the firmware as it is"),
    ("gpu host-device net-sriov", "libvirt's {} driver passes through no devices that a VMI can name"),
    ("net-passt net-multiqueue", "libvirt's {} driver attaches to the hypervisor's own networks only"),
    ("memory-hotplug hugepages", "libvirt's {} driver cannot add memory"),
    ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's {} driver does not set it"),
)


def _lacking(driver: str, *more: tuple[str, str]) -> Supports:
    """What one of those drivers cannot do: all of the above, and more."""
    return impossible(*((features, reason.format(driver)) for features, reason in _DRIVERS_LACK), *more)


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


class OpenVZ(Announced):
    """OpenVZ containers; the driver runs inside the client library and calls vzctl."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="openvz",
        title="OpenVZ",
        overheads=Overheads(
            daemon="0",
            vmm="24Mi",
            estimate="what libvirt's LXC driver keeps beside a container; the driver lives in the launcher",
        ),
        launcher_image="virt-launcher-openvz",
        connection=Connection.LIBRARY,
        events=Events.POLLED,
        uri="openvz:///system",
        root=True,
        privileged=True,
        container=True,
        disk_bus="virtio",
    )
    supports: ClassVar[Supports] = impossible(
        *IMPOSSIBLE_IN_CONTAINERS,
        (
            "container-disk claim ephemeral-disk config-disk filesystem disk-virtio",
            "an OpenVZ container has one file system, made from a template",
        ),
        ("cloud-init", "there is no disk to hand the data over"),
        ("gpu host-device", "libvirt's OpenVZ driver has no host devices"),
        ("guest-agent", "libvirt knows no guest agent in OpenVZ"),
        ("serial-console", "libvirt's OpenVZ driver opens no consoles"),
        ("kernel-boot", "a container runs on the node's kernel"),
    )


class VirtualBox(Announced):
    """Oracle VirtualBox 6.1 and later."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtualbox",
        title="VirtualBox",
        overheads=_LIKE_QEMU,
        launcher_image="virt-launcher-virtualbox",
        events=Events.POLLED,
        uri="vbox:///session",
        daemon="virtvboxd",
        device="vboxdrv",
        processes=("VBoxHeadless",),
    )
    supports: ClassVar[Supports] = _lacking(
        "VirtualBox",
        ("tpm", "libvirt's VirtualBox driver has no such device"),
        ("efi secure-boot", "libvirt's VirtualBox driver boots BIOS only"),
        ("live-migration", "libvirt's VirtualBox driver cannot migrate"),
        ("serial-console guest-agent", "libvirt's VirtualBox driver opens no consoles and knows no agent"),
        ("balloon", "libvirt's VirtualBox driver sets memory of stopped VMs only"),
    )


class Esx(Announced):
    """VMware ESX and vCenter; libvirt's driver talks to them over HTTPS, so a Pod here is a proxy with credentials."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="esx",
        title="VMware ESX",
        overheads=_ELSEWHERE,
        launcher_image="virt-launcher-esx",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="esx://{host}",
    )
    supports: ClassVar[Supports] = _lacking(
        "ESX",
        ("claim container-disk ephemeral-disk", "disks are vmdk files in a datastore of ESX"),
        ("filesystem", "ESX shares no directories through libvirt"),
        ("sound input", "libvirt's ESX driver writes no such device"),
        ("boot-order secure-boot", "libvirt's ESX driver chooses between BIOS and EFI only"),
        ("net-bridge net-masquerade", "networks are those of ESX"),
        ("serial-console guest-agent", "libvirt's ESX driver opens no consoles and knows no agent"),
        ("cpu-hotplug", "libvirt's ESX driver cannot attach anything to a running VM"),
    )


class Vmware(Announced):
    """VMware Workstation and Player; the driver runs inside the client library and calls vmrun."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="vmware",
        title="VMware Workstation",
        overheads=Overheads(
            daemon="0", vmm="60Mi", estimate="the VMM is taken to need what QEMU does; the driver lives in the launcher"
        ),
        launcher_image="virt-launcher-vmware",
        connection=Connection.LIBRARY,
        events=Events.POLLED,
        uri="vmwarews:///session",
        device="vmmon",
        processes=("vmware-vmx",),
    )
    supports: ClassVar[Supports] = _lacking(
        "VMware",
        ("container-disk claim ephemeral-disk", "disks are vmdk files"),
        ("filesystem", "libvirt's VMware driver shares no directories"),
        ("sound input", "libvirt's VMware driver writes no such device"),
        ("boot-order secure-boot", "libvirt's VMware driver chooses between BIOS and EFI only"),
        ("live-migration", "libvirt's VMware driver cannot migrate"),
        ("serial-console guest-agent", "libvirt's VMware driver opens no consoles and knows no agent"),
        ("cpu-hotplug balloon", "libvirt's VMware driver cannot change a running VM"),
    )


class HyperV(Announced):
    """Hyper-V hosts; libvirt's driver talks to them over WS-Management, so a Pod here is a proxy with credentials."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="hyperv",
        title="Microsoft Hyper-V",
        overheads=_ELSEWHERE,
        launcher_image="virt-launcher-hyperv",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="hyperv://{host}",
    )
    supports: ClassVar[Supports] = _lacking(
        "Hyper-V",
        ("disk-sata", "Hyper-V has IDE and SCSI disks in vhdx files"),
        ("claim container-disk ephemeral-disk", "disks are vhdx files of the Hyper-V host"),
        ("filesystem", "Hyper-V shares no directories through libvirt"),
        ("tpm sound input", "libvirt's Hyper-V driver reports such devices but adds none"),
        ("boot-order", "libvirt's Hyper-V driver does not set it"),
        ("net-bridge net-masquerade", "networks are virtual switches of the Hyper-V host"),
        ("live-migration", "libvirt's Hyper-V driver cannot migrate"),
        ("serial-console graphics", "libvirt's Hyper-V driver has screenshots only"),
    )


class Virtuozzo(Announced):
    """Virtuozzo, through its SDK."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtuozzo",
        title="Virtuozzo",
        overheads=_LIKE_QEMU,
        launcher_image="virt-launcher-virtuozzo",
        uri="vz:///system",
        daemon="virtvzd",
        root=True,
        privileged=True,
    )
    supports: ClassVar[Supports] = _lacking(
        "Virtuozzo",
        ("container-disk ephemeral-disk", "disks have Virtuozzo's own format"),
        ("filesystem", "VMs of Virtuozzo share no directories"),
        ("tpm sound", "libvirt's Virtuozzo driver refuses the device"),
        ("efi secure-boot", "libvirt's Virtuozzo driver refuses other firmware"),
        ("serial-console guest-agent", "libvirt's Virtuozzo driver opens no consoles and knows no agent"),
    )


class Bhyve(Announced):
    """bhyve, FreeBSD's hypervisor."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="bhyve",
        title="bhyve",
        overheads=Overheads(
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
