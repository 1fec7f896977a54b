"""The registry of what works: features that a VMI can ask for, and how far its hypervisor has each of them.

One declaration of a feature (its key, the field, how to see in a spec that it is asked for, and whether VirtFleet does
it yet) serves refusals and warnings at admission, the condition LiveMigratable, `virtfleet hypervisors`, the
documentation and the selection of tests. Hypervisors name what they have and what they cannot have, by what libvirt's
driver can do; what one of them does not name is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final
from xml.etree.ElementTree import Element

import msgspec

from virtfleet.api import names, traits
from virtfleet.api.migration import MigrationOptions
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.hypervisors import asking
from virtfleet.hypervisors.asking import Asked, said
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.migration import Obstacle
from virtfleet.hypervisors.support import WORKS, Level, Support


class NotYet(msgspec.Struct, frozen=True):
    """Something that KubeVirt does and VirtFleet does not do yet. It is admitted, as KubeVirt admits it."""

    instead: str
    """What happens instead."""
    advice: str
    """What to do."""
    gate: str = ""
    """KubeVirt's feature gate for it, behind which there is nothing here."""

    def warning(self, field: str) -> str:
        return f"{field} is accepted, but VirtFleet does not do it yet: {self.instead}; {self.advice}"


class Feature(msgspec.Struct, frozen=True):
    """Something a VMI can ask for."""

    key: str
    title: str
    field: str
    sign: Asked | None = None
    """How to see that it is asked for, where it is not by saying anything in the field."""
    not_yet: NotYet | None = None
    part_of: str = ""
    """Key of the feature that this is a part of: hypervisors that name only that one have this as well."""
    everywhere: bool = False
    """Whether no hypervisor has to do anything for it."""

    def asked(self, vmi: VMI) -> object:
        """Whether a VMI asks for it."""
        return (self.sign or said(self.field))(vmi)


class Finding(msgspec.Struct, frozen=True):
    """What there is to say about a VMI on a hypervisor, and of which field."""

    field: str
    message: str


_D: Final = "spec.domain.devices"
_NO_START: Final = "the VM does not start"
_BY_NAME: Final = "name the device by deviceName, as a device plugin offers it"
_NO_FUNCTION: Final = NotYet(
    f"no virtual function is assigned and {_NO_START}",
    "use bridge on a multus network, or pass a function through in hostDevices",
)

FEATURES: Final = (
    # disks and volumes
    Feature("disk-image", "images and block devices as disks", f"{_D}.disks", asking.disk_image),
    Feature("disk-virtio", "virtio disks", f"{_D}.disks", asking.bus("virtio")),
    Feature("disk-sata", "SATA disks", f"{_D}.disks", asking.bus("sata")),
    Feature("disk-scsi", "SCSI disks", f"{_D}.disks", asking.bus("scsi")),
    Feature("disk-usb", "USB disks", f"{_D}.disks", asking.bus("usb")),
    Feature("cdrom", "CD-ROM drives", f"{_D}.disks", said(f"{_D}.disks[].cdrom")),
    Feature("lun", "SCSI LUNs", f"{_D}.disks", said(f"{_D}.disks[].lun")),
    Feature("lun-reservation", "SCSI reservations", f"{_D}.disks[].lun.reservation",
            part_of="lun", not_yet=NotYet(
                "no node offers devices.kubevirt.io/pr-helper, so the VM finds no node", "remove reservation")),
    Feature("shareable-disk", "shared disks", f"{_D}.disks", said(f"{_D}.disks[].shareable")),
    Feature("boot-order", "boot order", f"{_D}.disks", asking.boot_order),
    Feature("block-size", "block sizes", f"{_D}.disks[].blockSize"),
    Feature("block-size-of-volume", "block sizes of the volume", f"{_D}.disks[].blockSize.matchVolume",
            asking.block_size_of_volume,
            NotYet(f"block sizes are not looked up and {_NO_START}", "write them into blockSize.custom"),
            part_of="block-size"),
    Feature("changed-block-tracking", "changed block tracking", f"{_D}.disks[].changedBlockTracking",
            not_yet=NotYet("changed blocks are not recorded", "back up whole disks")),
    Feature("io-threads", "I/O threads", "spec.domain.ioThreadsPolicy"),
    Feature("block-multiqueue", "queues for disks", f"{_D}.blockMultiQueue"),
    Feature("container-disk", "containerDisk volumes", "spec.volumes", asking.volume("container_disk")),
    Feature("claim", "claims as disks", "spec.volumes", asking.volume("persistent_volume_claim", "data_volume")),
    Feature("volume-hotplug", "volumes that come and go while the VM runs",
            "spec.volumes[].persistentVolumeClaim.hotpluggable", asking.plugged, part_of="claim"),
    Feature("data-volume", "DataVolumes, which are waited for", "spec.volumes[].dataVolume", part_of="claim"),
    Feature("memory-dump", "memory dumps", "spec.volumes[].memoryDump",
            not_yet=NotYet(f"memory is not dumped and {_NO_START}",
                   "remove the volume and use a crash dump of the guest's own"),
            part_of="claim"),
    Feature("host-disk", "disks of the node", "spec.volumes[].hostDisk"),
    Feature("ephemeral-disk", "ephemeral and empty disks", "spec.volumes", asking.volume("ephemeral", "empty_disk")),
    Feature("cloud-init", "cloud-init", "spec.volumes",
            asking.volume("cloud_init_no_cloud", "cloud_init_config_drive")),
    Feature("config-disk", "disks made from configuration", "spec.volumes",
            asking.volume("config_map", "secret", "service_account", "downward_api", "sysprep")),
    Feature("downward-metrics", "metrics of the node", f"{_D}.downwardMetrics",
            lambda v: v.spec.domain.devices.downward_metrics or asking.volume("downward_metrics")(v)),
    Feature("filesystem", "shared directories", f"{_D}.filesystems"),
    # network
    Feature("net-bridge", "bridge binding", f"{_D}.interfaces", said(f"{_D}.interfaces[].bridge")),
    Feature("interface-hotplug", "interfaces that come, go and are switched while the VM runs",
            f"{_D}.interfaces[].state", asking.unplugged),
    Feature("net-masquerade", "masquerade binding", f"{_D}.interfaces", said(f"{_D}.interfaces[].masquerade")),
    Feature("net-sriov", "SR-IOV", f"{_D}.interfaces[].sriov", not_yet=_NO_FUNCTION),
    Feature("net-claim", "networks of resource claims", "spec.networks[].resourceClaim",
            not_yet=NotYet(_NO_FUNCTION.instead, "use a multus network with bridge", "NetworkDevicesWithDRA"),
            part_of="net-sriov"),
    Feature("net-passt", "passt binding", f"{_D}.interfaces[].passtBinding",
            not_yet=NotYet(f"passt is not run and {_NO_START}", "use masquerade", "PasstBinding")),
    Feature("net-plugin", "network binding plugins", f"{_D}.interfaces[].binding",
            not_yet=NotYet(f"plugins are not run, so the interface is missing or {_NO_START}",
                           "use masquerade or bridge")),
    Feature("net-multiqueue", "queues for interfaces", f"{_D}.networkInterfaceMultiqueue"),
    Feature("istio", "Istio's proxy", f"metadata.annotations[{names.ISTIO_INJECT}]", asking.istio,
            NotYet("the guest's traffic does not pass Istio's proxy", "remove it"), everywhere=True),
    # CPU and memory
    Feature("cpu-model", "CPU models", "spec.domain.cpu.model", asking.cpu_model),
    Feature("cpu-features", "CPU features", "spec.domain.cpu.features"),
    Feature("cpu-pinning", "dedicated CPUs", "spec.domain.cpu.dedicatedCpuPlacement"),
    Feature("cpu-hotplug", "CPU hotplug", "spec.domain.cpu.maxSockets", asking.cpu_hotplug),
    Feature("numa", "NUMA passthrough", "spec.domain.cpu.numa"),
    Feature("realtime", "real-time CPUs", "spec.domain.cpu.realtime"),
    Feature("memory-hotplug", "memory hotplug", "spec.domain.memory.maxGuest", asking.memory_hotplug),
    Feature("hugepages", "huge pages", "spec.domain.memory.hugepages"),
    Feature("balloon", "memory balloon", f"{_D}.autoattachMemBalloon"),
    # firmware and boot
    Feature("efi", "EFI", "spec.domain.firmware.bootloader.efi"),
    Feature("efi-persistent", "EFI variables that last", "spec.domain.firmware.bootloader.efi.persistent",
            part_of="efi"),
    Feature("secure-boot", "secure boot", "spec.domain.firmware.bootloader.efi.secureBoot", asking.secure_boot),
    Feature("kernel-boot", "kernel boot", "spec.domain.firmware.kernelBoot.container"),
    Feature("acpi-tables", "ACPI tables", "spec.domain.firmware.acpi"),
    Feature("ignition", "Ignition", f"metadata.annotations[{names.IGNITION}]", asking.annotation(names.IGNITION)),
    Feature("start-paused", "start paused", "spec.startStrategy", traits.starts_paused),
    # devices
    Feature("graphics", "graphics and VNC", f"{_D}.autoattachGraphicsDevice",
            lambda v: v.spec.domain.devices.autoattach_graphics_device or v.spec.domain.devices.video),
    Feature("serial-console", "serial console", f"{_D}.autoattachSerialConsole"),
    Feature("console-log", "a log of the serial console", f"{_D}.logSerialConsole"),
    Feature("input", "input devices", f"{_D}.inputs"),
    Feature("tpm", "TPM", f"{_D}.tpm", asking.tpm),
    Feature("tpm-persistent", "TPM that remembers", f"{_D}.tpm.persistent", traits.persistent_tpm, part_of="tpm"),
    Feature("watchdog", "watchdog", f"{_D}.watchdog"),
    Feature("rng", "random number generator", f"{_D}.rng"),
    Feature("sound", "sound", f"{_D}.sound"),
    Feature("panic", "panic devices", f"{_D}.panicDevices"),
    Feature("usb-redirection", "USB redirection", f"{_D}.clientPassthrough"),
    Feature("vsock", "vsock", f"{_D}.autoattachVSOCK"),
    Feature("gpu", "GPUs", f"{_D}.gpus"),
    Feature("gpu-claim", "GPUs of resource claims", f"{_D}.gpus[].claimName",
            not_yet=NotYet(_NO_START, _BY_NAME, "GPUsWithDRA"), part_of="gpu"),
    Feature("host-device", "host devices", f"{_D}.hostDevices"),
    Feature("host-device-claim", "host devices of resource claims", f"{_D}.hostDevices[].claimName",
            not_yet=NotYet(_NO_START, _BY_NAME, "HostDevicesWithDRA"), part_of="host-device"),
    Feature("device-tags", "tags of devices", f"{_D}.*[].tag", asking.tags,
            NotYet("a config drive tells those of interfaces and disks with a pciAddress, and no other",
                   "set pciAddress, or know disks by serial and interfaces by macAddress"),
            everywhere=True),
    Feature("guest-agent", "guest agent", "spec.accessCredentials", asking.guest_agent),
    Feature("agent-credentials", "credentials by the guest agent", "spec.accessCredentials[].qemuGuestAgent",
            asking.credentials_by_agent, part_of="guest-agent"),
    # hypervisor features
    Feature("hyperv-enlightenments", "Hyper-V enlightenments", "spec.domain.features.hyperv",
            lambda v: (f := v.spec.domain.features) and (f.hyperv or f.hyperv_passthrough)),
    Feature("kvm-hidden", "hiding KVM", "spec.domain.features.kvm"),
    Feature("sev", "AMD SEV", "spec.domain.launchSecurity", traits.sev),
    Feature("sev-attestation", "attestation of SEV", "spec.domain.launchSecurity.sev.attestation",
            not_yet=NotYet("the guest is not attested and stays paused until virtctl unpause", "remove attestation"),
            part_of="sev"),
    Feature("tdx", "Intel TDX", "spec.domain.launchSecurity.tdx",
            not_yet=NotYet("no node offers devices.kubevirt.io/tdx, so the VM finds no node", "remove it",
                   "WorkloadEncryptionTDX")),
    Feature("clock", "clock and timers", "spec.domain.clock"),
    # life
    Feature("live-migration", "live migration", "spec.evictionStrategy", asking.eviction("LiveMigrate")),
    Feature("hook-sidecars", "hook sidecars", f"metadata.annotations[{names.HOOK_SIDECARS}]",
            asking.annotation(names.HOOK_SIDECARS)),
)  # fmt: skip

BY_KEY: Final = {feature.key: feature for feature in FEATURES}
_UNNAMED: Final = Support(Level.ABSENT, "its description does not name it")


def support(hypervisor: Hypervisor, key: str, architecture: str = "amd64") -> Support:
    """How far a hypervisor has a feature, by what its driver can do and by what VirtFleet does with it."""
    feature = BY_KEY[key]
    named = WORKS if feature.everywhere else _named(hypervisor, feature, architecture)
    if named and named.level is Level.IMPOSSIBLE:
        return named
    if hypervisor.refusal:
        return Support(Level.ABSENT, hypervisor.refusal)
    if named and feature.not_yet:
        return Support(Level.ABSENT, feature.not_yet.instead, advice=feature.not_yet.advice, admitted=True)
    return named or _UNNAMED


def _named(hypervisor: Hypervisor, feature: Feature, architecture: str) -> Support | None:
    for key in (feature.key, feature.part_of):
        if named := hypervisor.supports.get(f"{key}/{architecture}") or hypervisor.supports.get(key):
            return named
    return None


def obstacles(
    hypervisor: Hypervisor, vmi: VMI, domain: Element | None = None, options: MigrationOptions | None = None
) -> Iterator[Obstacle]:
    """What keeps a VM on its node while it runs: what its owner could change first, what nobody can change last."""
    moving = support(hypervisor, "live-migration", vmi.spec.architecture or "amd64")
    if moving.level is not Level.IMPOSSIBLE:
        yield from hypervisor.migration.obstacles(vmi, domain, options)
    if moving.level in (Level.ABSENT, Level.IMPOSSIBLE):
        name = hypervisor.descriptor.name
        yield Obstacle(names.NotMigratable.OTHER, f"hypervisor {name} cannot migrate: {moving.reason}")


def at(level: Level, hypervisor: Hypervisor, architecture: str = "amd64") -> list[Feature]:
    """The features that a hypervisor has so far: which ones to list, and which ones to test."""
    return [f for f in FEATURES if support(hypervisor, f.key, architecture).level is level]


def refusals(hypervisor: Hypervisor, vmi: VMI, gates: Collection[str] = (), path: str = "spec") -> Iterator[Finding]:
    """Why a VMI cannot run on a hypervisor: every field that asks for too much, with the reason.

    `path` is where the spec is: a VMI may be the template of another object.
    """
    name = hypervisor.descriptor.name
    if hypervisor.refusal:
        yield Finding(f"{path}.hypervisor", hypervisor.refusal)
        return
    refused: set[str] = set()
    for feature, has in _asked(hypervisor, vmi):
        if has.level is Level.WORKS or has.admitted or (has.gate and has.gate in gates) or feature.part_of in refused:
            continue
        refused.add(feature.key)
        message = f"hypervisor {name} does not support {feature.title}: {has.reason}"
        if has.level is Level.EXPERIMENTAL:
            message = (
                f"{feature.title} on hypervisor {name} is experimental ({has.reason}); "
                f"the feature gate {has.gate} enables it"
            )
        yield Finding(_placed(feature.field, path), message)


def warnings(hypervisor: Hypervisor, vmi: VMI, path: str = "spec") -> Iterator[str]:
    """What a VMI is admitted with although nothing comes of it."""
    for feature, has in _asked(hypervisor, vmi):
        if has.admitted:
            yield NotYet(has.reason, has.advice).warning(_placed(feature.field, path))


def _placed(field: str, path: str) -> str:
    """A field of a VMI where the VMI's spec is at `path`."""
    return path + field.removeprefix("spec") if field.startswith("spec") else path.removesuffix("spec") + field


def _asked(hypervisor: Hypervisor, vmi: VMI) -> Iterator[tuple[Feature, Support]]:
    architecture = vmi.spec.architecture or "amd64"
    return ((f, support(hypervisor, f.key, architecture)) for f in FEATURES if f.asked(vmi))
