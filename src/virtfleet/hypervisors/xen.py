"""Xen, through libvirt's libxl driver, in the launcher of a node that is Xen's dom0.

What a VMI boots from decides what its guest is. A kernel makes it PVH, or PV where its machine type says `xenpv` or the
processor has no extensions; firmware makes it HVM, a whole PC with BIOS or EFI. Disks are Xen's own, which QEMU serves
in dom0: for `virtio`, the guest has xvda and so on, and in HVM an IDE disk until its drivers take over.

The guest's memory is Xen's, not dom0's, and its CPUs are no threads there: there is nothing for a handler to tune. Nor
does a domain end with its launcher's processes: see `outliving`.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

import msgspec

from virtfleet.api import traits
from virtfleet.api.disks import Disk, Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, interfaces, paths, volumes
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.targets import TargetNames
from virtfleet.domain.volumes import Source
from virtfleet.domain.xml import add
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import (
    DaemonPlan,
    DaemonSettings,
    Descriptor,
    Evidence,
    Hypervisor,
    Outliving,
    Overheads,
)
from virtfleet.hypervisors.proof import Device, Step
from virtfleet.hypervisors.support import NO_CONSOLE_LOG, Level, Support, Supports, impossible, works

PV, PVH, HVM = "xenpv", "xenpvh", "xenfv"
_OS_TYPES = {PV: "linux", PVH: "xenpvh", HVM: "hvm"}
_EFI_FIRMWARE = "/usr/share/ovmf/OVMF.fd"  # the driver reads of it that it is EFI; Xen knows its own place
# Memory is set aside for guests when the machine boots: a launcher does not take it from dom0.
_LIBXL_CONF = "autoballoon = 0\n"
_DIRECTORIES = ("/var/run/xen", "/var/lib/xen", "/var/log/xen")  # of device models: their sockets, notes and logs
UNSEEN = "libvirt's Xen driver takes it, but no guest was seen with it yet"
_IDE_PLACES = "abcd"
_PREFIXES = {"xen": "xvd", "scsi": "sd", "ide": "hd"}
_NODE_NETWORK = f"{paths.PRIVATE}/node-network"
_VIF = "/etc/libvirt/vif"
_VIF_SCRIPT = rf"""#!/bin/sh
# Called when the kernel has made a guest's interface, in the node's network: brings it into the Pod's, and its bridge.
set -e
[ "$1" = online ] || exit 0
bridge=$(xenstore-read "$XENBUS_PATH/bridge")
nsenter --net={_NODE_NETWORK} ip link set "$vif" netns $$
mtu=$(ip -o link show "$bridge" | sed 's/.* mtu \([0-9]*\).*/\1/')
ip link set "$vif" mtu "$mtu" master "$bridge" up
xenstore-write "$XENBUS_PATH/hotplug-status" connected
"""


_OUTLIVING = Outliving(
    listing=("xl", "list"),
    # The device model's process, which has ended with its Pod, is noted by a number that is another process' here.
    ending=(("xenstore-rm", "/local/domain/{id}/image/device-model-pid"), ("xl", "destroy", "{id}")),
)


class Xen(Hypervisor):
    """Xen."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="xen",
        title="Xen",
        overheads=Overheads(daemon="32Mi", vmm="36Mi"),
        launcher_image="virt-launcher-xen",
        uri="xen:///system",
        daemon="virtxend",
        driver="libxl",
        root=True,
        privileged=True,
        outliving=_OUTLIVING,
        node_paths={
            "/dev/pts": "/dev/pts",  # where Xen's own daemon has the consoles of guests without firmware
            _NODE_NETWORK: "/proc/1/ns/net",  # where the kernel makes guests' interfaces
        },
        processes=("xen-qemu", "qemu-system"),
        disk_bus="virtio",
    )
    evidence = Evidence.GUESTS
    supports: ClassVar[Supports] = {
        **works(
            "disk-image disk-virtio container-disk claim ephemeral-disk cloud-init config-disk",
            "host-disk balloon kernel-boot start-paused serial-console net-bridge net-masquerade",
        ),
        **dict.fromkeys(("disk-scsi", "cdrom", "efi"), Support(Level.ABSENT, UNSEEN)),
        **impossible(
            ("disk-sata disk-usb", "its disks are on the buses virtio, which is Xen's own, and scsi"),
            ("lun shareable-disk io-threads block-multiqueue block-size", "libxl has no such disks"),
            ("console-log", NO_CONSOLE_LOG),
            ("boot-order", "libvirt's Xen driver boots the first disk"),
            ("filesystem", "libxl shares no directories"),
            ("tpm watchdog panic sound vsock downward-metrics rng", "libvirt's Xen driver has no such device"),
            ("graphics input", "libvirt's Xen driver shows a display on a port of the network only, not on a socket"),
            ("secure-boot", "secure boot is not supported on Xen"),
            ("net-passt net-multiqueue", "libvirt's Xen driver attaches to bridges only"),
            ("hyperv-enlightenments", "libxl takes only a part of the enlightenments"),
            ("cpu-model numa realtime", "libxl takes CPU features, not models"),
            ("cpu-pinning", "the CPUs of the node are virtual ones of dom0, and say nothing of those guests run on"),
            ("memory-hotplug hugepages", "libxl has no such memory"),
            ("sev tdx kvm-hidden", "it is a feature of KVM"),
            ("guest-agent", "libvirt knows no guest agent on Xen"),
            ("ignition acpi-tables", "libxl cannot hand it to the guest"),
            ("disk-virtio/arm64 disk-virtio/s390x", "VirtFleet knows Xen on amd64 only"),
        ),
    }

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (Device("xen/privcmd"), Device("xen/xenbus"), Device("xen/evtchn"), Device("xen/gntdev"))

    def build(self, vmi: VMI, context: Context) -> Element:
        kind = _kind(vmi)
        root = common.document(vmi, "xen")
        if (firmware := vmi.spec.domain.firmware) and firmware.uuid:
            add(root, "uuid", firmware.uuid)
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        _boot(root, vmi, kind)
        if kind == HVM:
            features = add(root, "features")
            for feature in ("acpi", "apic", "pae"):
                add(features, feature)
        add(root, "clock", offset="utc")
        common.reboot_policy(root, vmi)
        devices = add(root, "devices")
        _disks(devices, vmi, context, kind)
        _interfaces(devices, vmi, context)
        if traits.serial_console(vmi):
            if kind == HVM:
                add(add(devices, "serial", type="pty"), "target", port=0)
            target = {"type": "serial"} if kind == HVM else {"type": "xen"}
            add(add(devices, "console", type="pty"), "target", **target, port=0)
        add(devices, "memballoon", model="xen")  # of which no guest can do without
        return root

    def adapt(self, domain: Element, context: Context) -> Element:
        """A guest with a kernel is PV where Xen has no extensions of the processor for anything else."""
        os_type, machines = domain.find("os/type"), context.host.machines
        if os_type is not None and os_type.get("machine") == PVH and machines and PVH not in machines:
            os_type.set("machine", PV)
            os_type.text = _OS_TYPES[PV]
        return domain

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        plan = daemons.plan(self.descriptor, settings, {"libxl.conf": _LIBXL_CONF, "vif": _VIF_SCRIPT})
        # The driver stays out of use where it cannot read there that this is dom0.
        directories = (*plan.directories, *_DIRECTORIES)
        return msgspec.structs.replace(plan, directories=directories, mounts={"/proc/xen": "xenfs"})

    def memory(self, vmi: VMI) -> int:
        return 0  # page tables and virtual CPUs are Xen's, outside of dom0

    def identity(self, device: Element) -> str:
        """By the name of the disk in the guest, or the hardware address, which stay: the driver forgets aliases."""
        mac, target = device.find("mac"), device.find("target")
        if mac is not None:
            return mac.get("address", "").lower()
        return target.get("dev", "") if target is not None else ""


def _kind(vmi: VMI) -> str:
    """What the guest is, by what it boots from."""
    firmware, machine = vmi.spec.domain.firmware, vmi.spec.domain.machine
    boot = firmware.kernel_boot if firmware else None
    if not boot or not boot.container or not boot.container.kernel_path:
        return HVM
    return PV if machine and machine.type == PV else PVH


def _boot(root: Element, vmi: VMI, kind: str) -> None:
    os = add(root, "os")
    add(os, "type", _OS_TYPES[kind], arch="x86_64", machine=kind)
    if kind == HVM:
        if traits.efi(vmi):
            add(os, "loader", _EFI_FIRMWARE, readonly="yes", type="pflash")
        disks = vmi.spec.domain.devices.disks
        add(os, "boot", dev="cdrom" if disks and disks[0].cdrom else "hd")
        return
    if traits.efi(vmi):
        raise DomainError("spec.domain.firmware: on xen, a kernel is booted by itself, without EFI; leave one out")
    common.kernel(os, vmi)


def _disks(devices: Element, vmi: VMI, context: Context, kind: str) -> None:
    targets = TargetNames(vmi)
    for disk, volume, index in volumes.disks(vmi):
        _disk(devices, disk, volume, volumes.source(vmi, volume, index, context), targets, kind)


def _disk(devices: Element, disk: Disk, volume: Volume, source: Source, targets: TargetNames, kind: str) -> None:
    # A disk that is only read is a CD-ROM drive of a PC: QEMU serves no such disk of Xen's own, and Linux takes no such
    # drive. Guests without firmware may write, then, but only to what is theirs alone and made anew at every start.
    # What is made from configuration is like that in any case, and no guest needs one of the few drives for it.
    drive = bool(disk.cdrom or (disk.disk and disk.disk.readonly))
    if drive and kind != HVM and (volume.persistent_volume_claim or volume.data_volume or volume.host_disk):
        raise DomainError(
            f"disk {disk.name!r}: a guest that boots a kernel by itself has no disks on xen that are only read; "
            "leave out readonly, or boot from a disk"
        )
    drive = drive and kind == HVM
    bus = "ide" if drive else "scsi" if kind == HVM and traits.bus(disk) == "scsi" else "xen"
    # xvda and hda are the same place, and sda another.
    place = targets.name(disk.name, "scsi" if bus == "scsi" else "virtio")[0][2:]
    if drive and place not in _IDE_PLACES:
        most = len(_IDE_PLACES)
        raise DomainError(f"disk {disk.name!r}: what is only read must be among the first {most} disks on xen")
    element = add(devices, "disk", type=source.type, device="cdrom" if drive else "disk")
    add(element, "driver", name="qemu", type=source.format)
    add(element, "source", **{"dev" if source.block else "file": source.path})
    add(element, "target", dev=_PREFIXES[bus] + place, bus=bus)
    if drive:
        add(element, "readonly")
    add(element, "alias", name=f"ua-{disk.name}")


def _interfaces(devices: Element, vmi: VMI, context: Context) -> None:
    for interface in interfaces.present(vmi):
        element = interfaces.on_bridge(devices, interface, context, "a guest of xen")
        if interface.model not in ("", "virtio"):
            raise DomainError(f"interface {interface.name!r}: interfaces on xen are Xen's own; leave out the model")
        add(element, "script", path=_VIF)
        add(element, "model", type="netfront")
        add(element, "alias", name=f"ua-{interface.name}")
