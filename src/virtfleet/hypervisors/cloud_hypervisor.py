"""Cloud Hypervisor.

libvirt's driver gives it raw files on the virtio bus, taps, PCI devices and one serial port, and boots a kernel or a
firmware that is given as one. Everything else it refuses when the domain is defined, so none of it is written down.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, hostdevices, interfaces, paths, volumes
from virtfleet.domain.context import Context
from virtfleet.domain.cpupool import CpuPool
from virtfleet.domain.errors import DomainError
from virtfleet.domain.targets import TargetNames
from virtfleet.domain.xml import add
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Evidence, Hypervisor, Overheads, Tuning
from virtfleet.hypervisors.support import NO_CONSOLE_LOG, Supports, impossible, works

_FIRMWARE = "/usr/share/cloud-hypervisor/hypervisor-fw"
_EFI_FIRMWARE = "/usr/share/cloud-hypervisor/CLOUDHV.fd"
_OS_TYPES = {"amd64": "x86_64", "arm64": "aarch64"}
_REFUSED = "libvirt's Cloud Hypervisor driver refuses the device"


class CloudHypervisor(Hypervisor):
    """Cloud Hypervisor."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="cloud-hypervisor",
        title="Cloud Hypervisor",
        overheads=Overheads(
            daemon="32Mi",
            vmm="30Mi",
            estimate="the daemon as measured with libvirt's QEMU driver, the VMM half of QEMU: it has few devices",
        ),
        launcher_image="virt-launcher-cloud-hypervisor",
        uri="ch:///session",
        daemon="virtchd",
        device="kvm",
        program="cloud-hypervisor",
        processes=("cloud-hypervisor",),
        vcpu_thread=r"^vcpu(\d+)$",
        disk_bus="virtio",
    )
    evidence = Evidence.SCHEMA
    supports: ClassVar[Supports] = {
        **works(
            "disk-image disk-virtio container-disk claim ephemeral-disk cloud-init config-disk host-disk",
            "net-bridge net-masquerade net-sriov net-multiqueue cpu-pinning efi kernel-boot start-paused",
            "serial-console rng gpu host-device",
        ),
        **impossible(
            ("graphics input sound tpm watchdog panic usb-redirection balloon filesystem", _REFUSED),
            ("console-log", NO_CONSOLE_LOG),
            ("cdrom", "it has no CD-ROM device; an ISO image works as an ordinary disk"),
            ("lun disk-sata disk-scsi disk-usb", "libvirt's driver attaches disks to the virtio bus only"),
            (
                "shareable-disk io-threads block-multiqueue block-size changed-block-tracking",
                "libvirt's driver passes only the path of a disk on",
            ),
            ("boot-order", "it boots the kernel or firmware that it is given"),
            ("secure-boot acpi-tables ignition", "its firmware has no such thing"),
            ("efi-persistent", "its firmware keeps no variables"),
            ("cpu-model cpu-features", "guests see the host's CPU"),
            ("volume-hotplug", "libvirt's driver cannot attach a disk to a running VM; leave hotpluggable out"),
            ("cpu-hotplug memory-hotplug", "libvirt's driver cannot resize a running VM"),
            ("numa realtime hugepages", "libvirt's driver does not pass it on"),
            ("net-passt net-plugin", "libvirt's driver attaches taps only"),
            ("vsock downward-metrics guest-agent", "libvirt's driver has no channel to the guest"),
            ("hyperv-enlightenments kvm-hidden clock", "it has no such settings"),
            ("sev tdx", "libvirt's driver wants an IGVM image in place of the kernel, which a VMI cannot name"),
            ("live-migration", "libvirt's driver cannot migrate, although Cloud Hypervisor could"),
            ("disk-virtio/s390x", "it runs on amd64 and arm64 only"),
        ),
    }

    def build(self, vmi: VMI, context: Context) -> Element:
        if context.emulated:
            raise DomainError("cloud-hypervisor cannot emulate CPUs: it needs a working /dev/kvm")
        root = common.document(vmi, "kvm")
        common.memory(root, vmi)
        topology = traits.topology(vmi)
        common.vcpus(root, topology.vcpus)
        _boot(root, vmi)
        common.reboot_policy(root, vmi)
        _pinning(root, vmi, context, topology)
        devices = add(root, "devices")
        _disks(devices, vmi, context)
        _interfaces(devices, vmi, context)
        if traits.serial_console(vmi):
            serial = add(devices, "serial", type="unix")
            add(serial, "source", mode="bind", path=paths.vmi_socket(vmi.metadata.uid, "virt-serial0"))
            add(serial, "target", port=0)
        if vmi.spec.domain.devices.rng:
            add(add(devices, "rng", model="virtio"), "backend", "/dev/urandom", model="random")
        if pretended := hostdevices.emulated(vmi, context):
            raise DomainError(
                f"{pretended[0]}: cloud-hypervisor cannot emulate a device that the node pretends to have"
            )
        hostdevices.host_devices(devices, vmi, context)
        return root

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        if not settings.modular:
            raise DomainError("cloud-hypervisor needs virtchd: libvirtd is not built with its driver")
        return daemons.plan(self.descriptor, settings, {"ch.conf": ""}, directories=("ch",))

    def tuning(self, vmi: VMI, context: Context) -> Tuning:
        return Tuning(lock_memory=context.direct_memory_access)


def _boot(root: Element, vmi: VMI) -> None:
    os = add(root, "os")
    add(os, "type", "hvm", arch=_OS_TYPES.get(vmi.spec.architecture, "x86_64"))
    firmware = vmi.spec.domain.firmware
    boot = firmware.kernel_boot if firmware else None
    if boot and boot.container and boot.container.kernel_path:
        common.kernel(os, vmi)
        return
    add(os, "kernel", _EFI_FIRMWARE if traits.efi(vmi) else _FIRMWARE)
    if boot and boot.kernel_args:
        add(os, "cmdline", boot.kernel_args)


def _pinning(root: Element, vmi: VMI, context: Context, topology: traits.Topology) -> None:
    if not traits.dedicated_cpus(vmi):
        return
    tune = add(root, "cputune")
    pool = CpuPool(topology, context.cells, context.cpus, may_cross_cells=True)
    for vcpu, thread in enumerate(pool.take_cores()):
        add(tune, "vcpupin", vcpu=vcpu, cpuset=thread)


def _disks(devices: Element, vmi: VMI, context: Context) -> None:
    targets = TargetNames(vmi)
    for disk, volume, index in volumes.disks(vmi):
        source = volumes.source(vmi, volume, index, context, stacked=False)
        # Block devices are given as files as well: the driver refuses the type `block`.
        element = add(devices, "disk", type="file", device="disk")
        add(element, "driver", type="raw")
        add(element, "source", file=source.path)
        add(element, "target", dev=targets.name(disk.name, "virtio")[0], bus="virtio")
        if (disk.disk and disk.disk.readonly) or volumes.config_kind(volume):
            add(element, "readonly")
        add(element, "alias", name=f"ua-{disk.name}")


def _interfaces(devices: Element, vmi: VMI, context: Context) -> None:
    for interface, tap in interfaces.attached(vmi, context):
        if not tap:
            raise DomainError(f"interface {interface.name!r}: cloud-hypervisor can be attached to taps only")
        element = add(devices, "interface", type="ethernet")
        if interface.mac_address:
            add(element, "mac", address=interface.mac_address)
        add(element, "model", type="virtio")
        if queues := interfaces.queues(vmi, interface):
            add(element, "driver", queues=queues)
        add(element, "alias", name=f"ua-{interface.name}")
