"""bhyve, FreeBSD's hypervisor."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import volumes
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors.base import Descriptor, Evidence, Overheads
from virtfleet.hypervisors.plain import PlainMachine
from virtfleet.hypervisors.support import NO_CONSOLE_LOG, Supports, impossible, works

_FIRMWARE = "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd"
_LOADER = "/usr/local/sbin/grub-bhyve"


class Bhyve(PlainMachine):
    """bhyve. It reads raw images, so the launcher makes one where a volume is none."""

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
        program="bhyve",
        processes=("bhyve",),
    )
    evidence = Evidence.SCHEMA
    domain_type = "bhyve"
    disk_format, disk_driver = "raw", "file"
    supports: ClassVar[Supports] = impossible(
        ("disk-usb disk-scsi lun shareable-disk io-threads block-multiqueue", "bhyve has SATA, virtio and NVMe disks"),
        ("block-size changed-block-tracking", "libvirt's bhyve driver passes only the path of a disk on"),
        ("boot-order", "bhyve boots the first disk"),
        (
            "balloon memory-hotplug cpu-hotplug volume-hotplug interface-hotplug hugepages",
            "libvirt's bhyve driver cannot change a running VM",
        ),
        ("cpu-model cpu-features numa realtime cpu-pinning", "libvirt's bhyve driver sets the topology only"),
        ("tpm watchdog panic vsock usb-redirection downward-metrics", "libvirt's bhyve driver has no such device"),
        ("console-log", NO_CONSOLE_LOG),
        ("filesystem rng sound input graphics", "the document has no such device yet"),
        ("gpu host-device net-sriov", "a device must be bound by hand on FreeBSD"),
        ("secure-boot acpi-tables ignition kernel-boot", "libvirt's bhyve driver has its own loader, or EFI"),
        ("efi-persistent", "the document names no file for variables yet"),
        ("net-passt net-plugin net-multiqueue", "bhyve is attached to bridges"),
        ("live-migration", "libvirt's bhyve driver cannot migrate"),
        ("start-paused", "libvirt's bhyve driver cannot pause"),
        ("hyperv-enlightenments kvm-hidden sev tdx clock guest-agent", "bhyve has no such thing"),
    ) | works(
        "disk-image disk-sata disk-virtio cdrom container-disk claim ephemeral-disk host-disk cloud-init config-disk",
        "net-bridge net-masquerade efi serial-console",
    )

    def build(self, vmi: VMI, context: Context) -> Element:
        root = super().build(vmi, context)
        if traits.serial_console(vmi):
            serial = add(child(root, "devices"), "serial", type="nmdm")
            number = vmi.metadata.uid  # one pair of null modems for each VM
            add(serial, "source", master=f"/dev/nmdm{number}A", slave=f"/dev/nmdm{number}B")
        return root

    def firmware(self, root: Element, vmi: VMI) -> None:
        if not traits.efi(vmi):
            add(root, "bootloader", _LOADER)
        os = add(root, "os")
        add(os, "type", "hvm")
        if traits.efi(vmi):
            add(os, "loader", _FIRMWARE, readonly="yes", type="pflash")

    def image(self, vmi: VMI, disk: Disk, volume: Volume, index: int, context: Context) -> tuple[str, bool]:
        source = volumes.source(vmi, volume, index, context, stacked=False)
        if source.block:
            raise DomainError(f"disk {disk.name!r}: bhyve reads files; give the claim volumeMode Filesystem")
        return source.path, bool(disk.cdrom)
