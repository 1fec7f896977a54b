"""Machines as libvirt's simpler drivers take them: memory, CPUs, firmware, disks and bridges, and little else.

What these drivers lack alike stands here, too. Their disks have the hypervisor's own format and lie where it looks for
them, so a VMI names them by `hostDisk`; what is made from configuration is an ISO image, which all of them read.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, interfaces, paths, volumes
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.targets import TargetNames
from virtfleet.domain.xml import add
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Hypervisor, Overheads
from virtfleet.hypervisors.support import NO_CONSOLE_LOG, Support, impossible, works

LIKE_QEMU = Overheads(daemon="32Mi", vmm="60Mi", estimate="taken to be those of libvirt's QEMU driver")
ELSEWHERE = Overheads(
    daemon="0", vmm="0", estimate="VM and VMM run on another machine; the driver lives in the launcher"
)
_LACKING = (
    ("disk-virtio disk-usb lun shareable-disk io-threads block-multiqueue", "libvirt's {} driver has no such disks"),
    ("block-size changed-block-tracking boot-order", "libvirt's {} driver does not pass it on"),
    ("cpu-model cpu-features cpu-pinning numa realtime", "libvirt's {} driver sets the number of CPUs only"),
    ("watchdog panic rng vsock usb-redirection downward-metrics", "libvirt's {} driver adds no such device"),
    ("tpm filesystem sound input", "libvirt's {} driver adds no such device"),
    ("secure-boot acpi-tables ignition kernel-boot", "libvirt's {} driver leaves the firmware as it is"),
    ("gpu host-device net-sriov", "libvirt's {} driver passes through no devices that a VMI can name"),
    ("net-passt net-plugin net-multiqueue", "libvirt's {} driver attaches to bridges only, if at all"),
    ("memory-hotplug cpu-hotplug hugepages balloon", "libvirt's {} driver cannot give a running VM more"),
    ("interface-hotplug", "interfaces of a running VM of {} stay as they are"),
    ("hyperv-enlightenments kvm-hidden sev tdx clock", "libvirt's {} driver does not set it"),
    ("graphics", "the screen of a VM of {} is no socket in the launcher's Pod"),
    ("serial-console guest-agent", "libvirt's {} driver opens no consoles and knows no agent"),
    ("console-log", NO_CONSOLE_LOG),
    ("start-paused", "libvirt's {} driver starts VMs running"),
)  # fmt: skip
_PLAIN = "disk-image host-disk disk-sata disk-scsi cdrom"
_OWN_FORMAT = "disks of {} have a format of its own; prepare one and name it in hostDisk"


def limits(driver: str, *own: tuple[str, str], has: str = "") -> dict[str, Support]:
    """What one of these drivers can do: what all of them can and cannot, and what only this one cannot, and `has`."""
    every = ((features, reason.format(driver)) for features, reason in _LACKING)
    formats = ("container-disk claim ephemeral-disk", _OWN_FORMAT.format(driver))
    return impossible(*every, formats) | works(_PLAIN) | impossible(*own) | works(has)


class PlainMachine(Hypervisor):
    """A machine of one of these drivers. What follows are the words in which their documents differ."""

    domain_type: ClassVar[str]
    disk_format: ClassVar[str] = ""
    """libvirt's word for the format of disks, where the driver wants one."""
    disk_driver: ClassVar[str] = ""
    models: ClassVar[dict[str, str]] = {}
    """The driver's words for models of network cards, where it has its own."""

    def build(self, vmi: VMI, context: Context) -> Element:
        if context.emulated:
            raise DomainError(f"{self.descriptor.name} cannot emulate CPUs")
        root = common.document(vmi, self.domain_type)
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        self.firmware(root, vmi)
        common.reboot_policy(root, vmi)
        devices = add(root, "devices")
        targets = TargetNames(vmi)
        for disk, volume, index in volumes.disks(vmi):
            path, cdrom = self.image(vmi, disk, volume, index, context)
            bus = traits.bus(disk) or self.descriptor.disk_bus
            element = add(devices, "disk", type="file", device="cdrom" if cdrom else "disk")
            if self.disk_format:
                add(element, "driver", name=self.disk_driver, type="raw" if cdrom else self.disk_format)
            add(element, "source", file=path)
            add(element, "target", dev=targets.name(disk.name, bus)[0], bus=bus)
            if cdrom or (disk.disk and disk.disk.readonly):
                add(element, "readonly")
            add(element, "alias", name=f"ua-{disk.name}")
        for interface, tap in interfaces.attached(vmi, context):
            if not tap or not self.has("net-bridge"):
                raise DomainError(f"interface {interface.name!r}: {self.descriptor.name} cannot be attached to it")
            element = interfaces.on_bridge(devices, interface, context, self.descriptor.name)
            model = interface.model or "virtio"
            add(element, "model", type=self.models.get(model, model))
            add(element, "alias", name=f"ua-{interface.name}")
        return root

    def firmware(self, root: Element, vmi: VMI) -> None:
        """How it boots: a BIOS, from its first disk."""
        os = add(root, "os", firmware="efi" if traits.efi(vmi) else "")
        add(os, "type", "hvm", arch="x86_64")
        add(os, "boot", dev="hd")

    def image(self, vmi: VMI, disk: Disk, volume: Volume, index: int, context: Context) -> tuple[str, bool]:
        """Where the data of a disk lies, and whether it is shown as a CD-ROM."""
        made = volumes.seed(volume) or bool(volumes.config_kind(volume))
        if not volume.host_disk and not (made and self.has("config-disk")):
            raise DomainError(f"disk {disk.name!r}: {_OWN_FORMAT.format(self.descriptor.title)}")
        path = volumes.source(vmi, volume, index, context).path if made else self.path(volume)
        return path, made or bool(disk.cdrom)

    def path(self, volume: Volume) -> str:
        """Where a disk lies that the VMI names by `hostDisk`."""
        assert volume.host_disk is not None
        return paths.host_disk(volume.name, volume.host_disk.path)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        daemon = self.descriptor.connection is Connection.DAEMON
        return daemons.plan(self.descriptor, settings, {}) if daemon else super().daemon(settings)
