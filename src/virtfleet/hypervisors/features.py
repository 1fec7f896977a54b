"""Features that a VMI can ask for, and whether its hypervisor has them.

One declaration of a feature (its key, the field, and how to see in a spec that it is asked for) serves the refusal of
VMIs at admission, `virtfleet hypervisors`, the documentation and the selection of tests. What counts is what libvirt's
driver can do, not what the hypervisor could.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from virtfleet.api import names
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import traits, volumes
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.support import SUPPORTED, Level, Support


class Feature(msgspec.Struct, frozen=True):
    """Something a VMI can ask for."""

    key: str
    title: str
    field: str
    asked: Callable[[VMI], object]


class Refusal(msgspec.Struct, frozen=True):
    """Why a VMI cannot run on a hypervisor."""

    field: str
    message: str


def _bus(name: str) -> Callable[[VMI], bool]:
    return lambda vmi: any(traits.bus(disk) == name for disk in vmi.spec.domain.devices.disks)


def _disk(attribute: str) -> Callable[[VMI], bool]:
    return lambda vmi: any(getattr(disk, attribute) for disk in vmi.spec.domain.devices.disks)


def _volume(*kinds: str) -> Callable[[VMI], bool]:
    return lambda vmi: any(getattr(volume, kind) for volume in vmi.spec.volumes for kind in kinds)


def _interface(binding: str) -> Callable[[VMI], bool]:
    return lambda vmi: any(getattr(i, binding) for i in vmi.spec.domain.devices.interfaces)


def _device(name: str) -> Callable[[VMI], object]:
    return lambda vmi: getattr(vmi.spec.domain.devices, name)


def _cpu(name: str) -> Callable[[VMI], object]:
    return lambda vmi: vmi.spec.domain.cpu and getattr(vmi.spec.domain.cpu, name)


def _firmware(name: str) -> Callable[[VMI], object]:
    return lambda vmi: vmi.spec.domain.firmware and getattr(vmi.spec.domain.firmware, name)


def _feature(name: str) -> Callable[[VMI], object]:
    return lambda vmi: vmi.spec.domain.features and getattr(vmi.spec.domain.features, name)


def _disk_image(vmi: VMI) -> bool:
    """Whether a disk is an image or a device, and not made from configuration."""
    own = {v.name for v in vmi.spec.volumes if not (volumes.config_kind(v) or volumes.seed(v))}
    return any(disk.name in own for disk in vmi.spec.domain.devices.disks)


def _boot_order(vmi: VMI) -> bool:
    devices = vmi.spec.domain.devices
    orders = [disk.boot_order for disk in devices.disks] + [interface.boot_order for interface in devices.interfaces]
    return any(order is not None for order in orders)


def _secure_boot(vmi: VMI) -> bool:
    firmware = vmi.spec.domain.firmware
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return efi is not None and efi.secure_boot is not False


def _kernel_boot(vmi: VMI) -> bool:
    firmware = vmi.spec.domain.firmware
    return bool(firmware and firmware.kernel_boot and firmware.kernel_boot.container)


def _cpu_model(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.model and cpu.model not in ("host-model", "host-passthrough"))


def _cpu_hotplug(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.max_sockets and cpu.max_sockets > (cpu.sockets or 1))


def _memory_hotplug(vmi: VMI) -> bool:
    memory = vmi.spec.domain.memory
    return bool(memory and memory.max_guest is not None and Quantity.parse(memory.max_guest) > traits.memory(vmi))


def _guest_agent(vmi: VMI) -> bool:
    probes = [p for p in (vmi.spec.liveness_probe, vmi.spec.readiness_probe) if p]
    keys = [c.ssh_public_key.propagation_method for c in vmi.spec.access_credentials if c.ssh_public_key]
    by_agent = any(k and k.qemu_guest_agent for k in keys) or any(c.user_password for c in vmi.spec.access_credentials)
    return by_agent or any(p.guest_agent_ping or p.exec for p in probes)


_DEVICES: Final = "spec.domain.devices"

FEATURES: Final = tuple(
    Feature(*entry)
    for entry in (
        # disks and volumes
        ("disk-image", "images and block devices as disks", f"{_DEVICES}.disks", _disk_image),
        ("disk-virtio", "virtio disks", f"{_DEVICES}.disks", _bus("virtio")),
        ("disk-sata", "SATA disks", f"{_DEVICES}.disks", _bus("sata")),
        ("disk-scsi", "SCSI disks", f"{_DEVICES}.disks", _bus("scsi")),
        ("disk-usb", "USB disks", f"{_DEVICES}.disks", _bus("usb")),
        ("cdrom", "CD-ROM drives", f"{_DEVICES}.disks", _disk("cdrom")),
        ("lun", "SCSI LUNs", f"{_DEVICES}.disks", _disk("lun")),
        ("shareable-disk", "shared disks", f"{_DEVICES}.disks", _disk("shareable")),
        ("boot-order", "boot order", f"{_DEVICES}.disks", _boot_order),
        ("io-threads", "I/O threads", "spec.domain.ioThreadsPolicy", lambda v: v.spec.domain.io_threads_policy),
        ("block-multiqueue", "queues for disks", f"{_DEVICES}.blockMultiQueue", _device("block_multi_queue")),
        ("container-disk", "containerDisk volumes", "spec.volumes", _volume("container_disk")),
        ("claim", "claims as disks", "spec.volumes", _volume("persistent_volume_claim", "data_volume")),
        ("ephemeral-disk", "ephemeral and empty disks", "spec.volumes", _volume("ephemeral", "empty_disk")),
        ("cloud-init", "cloud-init", "spec.volumes", _volume("cloud_init_no_cloud", "cloud_init_config_drive")),
        ("config-disk", "disks made from configuration", "spec.volumes",
         _volume("config_map", "secret", "service_account", "downward_api", "sysprep")),
        ("downward-metrics", "metrics of the node", f"{_DEVICES}.downwardMetrics",
         lambda v: v.spec.domain.devices.downward_metrics or _volume("downward_metrics")(v)),
        ("filesystem", "shared directories", f"{_DEVICES}.filesystems", _device("filesystems")),
        # network
        ("net-bridge", "bridge binding", f"{_DEVICES}.interfaces", _interface("bridge")),
        ("net-masquerade", "masquerade binding", f"{_DEVICES}.interfaces", _interface("masquerade")),
        ("net-sriov", "SR-IOV", f"{_DEVICES}.interfaces", _interface("sriov")),
        ("net-passt", "passt binding", f"{_DEVICES}.interfaces", _interface("passt_binding")),
        ("net-multiqueue", "queues for interfaces", f"{_DEVICES}.networkInterfaceMultiqueue",
         _device("network_interface_multiqueue")),
        # CPU and memory
        ("cpu-model", "CPU models", "spec.domain.cpu.model", _cpu_model),
        ("cpu-features", "CPU features", "spec.domain.cpu.features", _cpu("features")),
        ("cpu-pinning", "dedicated CPUs", "spec.domain.cpu.dedicatedCpuPlacement", _cpu("dedicated_cpu_placement")),
        ("cpu-hotplug", "CPU hotplug", "spec.domain.cpu.maxSockets", _cpu_hotplug),
        ("numa", "NUMA passthrough", "spec.domain.cpu.numa", _cpu("numa")),
        ("realtime", "real-time CPUs", "spec.domain.cpu.realtime", _cpu("realtime")),
        ("memory-hotplug", "memory hotplug", "spec.domain.memory.maxGuest", _memory_hotplug),
        ("hugepages", "huge pages", "spec.domain.memory.hugepages", traits.hugepages),
        ("balloon", "memory balloon", f"{_DEVICES}.autoattachMemBalloon", _device("autoattach_mem_balloon")),
        # firmware and boot
        ("efi", "EFI", "spec.domain.firmware.bootloader.efi", traits.efi),
        ("secure-boot", "secure boot", "spec.domain.firmware.bootloader.efi.secureBoot", _secure_boot),
        ("kernel-boot", "kernel boot", "spec.domain.firmware.kernelBoot.container", _kernel_boot),
        ("acpi-tables", "ACPI tables", "spec.domain.firmware.acpi", _firmware("acpi")),
        ("ignition", "Ignition", f"metadata.annotations[{names.IGNITION}]",
         lambda v: v.metadata.annotations.get(names.IGNITION)),
        ("start-paused", "start paused", "spec.startStrategy", traits.starts_paused),
        # devices
        ("graphics", "graphics and VNC", f"{_DEVICES}.autoattachGraphicsDevice",
         lambda v: v.spec.domain.devices.autoattach_graphics_device or v.spec.domain.devices.video),
        ("serial-console", "serial console", f"{_DEVICES}.autoattachSerialConsole",
         _device("autoattach_serial_console")),
        ("input", "input devices", f"{_DEVICES}.inputs", _device("inputs")),
        ("tpm", "TPM", f"{_DEVICES}.tpm",
         lambda v: v.spec.domain.devices.tpm and v.spec.domain.devices.tpm.enabled is not False),
        ("watchdog", "watchdog", f"{_DEVICES}.watchdog", _device("watchdog")),
        ("rng", "random number generator", f"{_DEVICES}.rng", _device("rng")),
        ("sound", "sound", f"{_DEVICES}.sound", _device("sound")),
        ("panic", "panic devices", f"{_DEVICES}.panicDevices", _device("panic_devices")),
        ("usb-redirection", "USB redirection", f"{_DEVICES}.clientPassthrough", _device("client_passthrough")),
        ("vsock", "vsock", f"{_DEVICES}.autoattachVSOCK", _device("autoattach_vsock")),
        ("gpu", "GPUs", f"{_DEVICES}.gpus", _device("gpus")),
        ("host-device", "host devices", f"{_DEVICES}.hostDevices", _device("host_devices")),
        ("guest-agent", "guest agent", "spec.accessCredentials", _guest_agent),
        # hypervisor features
        ("hyperv-enlightenments", "Hyper-V enlightenments", "spec.domain.features.hyperv",
         lambda v: _feature("hyperv")(v) or _feature("hyperv_passthrough")(v)),
        ("kvm-hidden", "hiding KVM", "spec.domain.features.kvm", _feature("kvm")),
        ("sev", "AMD SEV", "spec.domain.launchSecurity", traits.sev),
        ("tdx", "Intel TDX", "spec.domain.launchSecurity.tdx", traits.tdx),
        ("clock", "clock and timers", "spec.domain.clock", lambda v: v.spec.domain.clock),
        # life
        ("live-migration", "live migration", "spec.evictionStrategy",
         lambda v: v.spec.eviction_strategy == "LiveMigrate"),
    )
)  # fmt: skip

BY_KEY: Final = {feature.key: feature for feature in FEATURES}


def support(hypervisor: Hypervisor, key: str, architecture: str = "") -> Support:
    """How far a hypervisor supports a feature, by what its driver can do."""
    table = hypervisor.supports
    return table.get(f"{key}/{architecture}") or table.get(key) or SUPPORTED


def refusals(hypervisor: Hypervisor, vmi: VMI, gates: Collection[str] = ()) -> Iterator[Refusal]:
    """Why a VMI cannot run on a hypervisor: every field that asks for too much, with the reason."""
    name = hypervisor.descriptor.name
    if hypervisor.refusal:
        yield Refusal("spec.hypervisor", hypervisor.refusal)
        return
    architecture = vmi.spec.architecture or "amd64"
    for feature in FEATURES:
        found = support(hypervisor, feature.key, architecture)
        if found.level is Level.SUPPORTED or not feature.asked(vmi):
            continue
        if found.level is Level.UNSUPPORTED:
            yield Refusal(feature.field, f"hypervisor {name} does not support {feature.title}: {found.reason}")
        elif found.gate not in gates:
            yield Refusal(
                feature.field,
                f"{feature.title} on hypervisor {name} is experimental ({found.reason}); "
                f"the feature gate {found.gate} enables it",
            )
