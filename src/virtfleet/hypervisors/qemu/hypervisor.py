"""What the hypervisors have in common whose VMM is QEMU: all but the accelerator."""

from __future__ import annotations

from typing import ClassVar, Final
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Hypervisor, Overheads, Tuning
from virtfleet.hypervisors.migration import Ask, Migration
from virtfleet.hypervisors.proof import Learned, Program, Step
from virtfleet.hypervisors.qemu import adapt, controllers, document, growth, images, needs
from virtfleet.hypervisors.qemu.migration import QemuMigration
from virtfleet.hypervisors.support import Support, impossible, works

OVERHEADS = Overheads(daemon="32Mi", vmm="60Mi", emulation=f"{adapt.TRANSLATED_CODE_MIB}Mi")

# QEMU writes its logs itself, so that a restart of the daemon loses nothing; virtlogd would take 18 MiB for keeping
# them short. A session's qemu.conf has no user: QEMU runs as the daemon does. Whether the way to another node's daemon
# is lost is for the launcher to say.
_QEMU_CONF = """\
stdio_handler = "file"
vnc_listen = "0.0.0.0"
vnc_tls = 0
vnc_sasl = 0
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = [ ]
cgroup_controllers = [ ]
keepalive_interval = -1
"""

QEMU: Final[dict[str, Support]] = {
    **works(
        "disk-image disk-virtio disk-sata disk-scsi disk-usb cdrom lun shareable-disk boot-order block-size io-threads",
        "block-multiqueue changed-block-tracking container-disk claim volume-hotplug host-disk ephemeral-disk",
        "cloud-init config-disk filesystem downward-metrics net-bridge net-masquerade net-sriov net-passt net-plugin",
        "net-multiqueue interface-hotplug",
        "cpu-model cpu-features cpu-pinning cpu-hotplug numa realtime memory-hotplug hugepages balloon",
        "efi secure-boot kernel-boot acpi-tables ignition start-paused graphics serial-console input tpm watchdog rng",
        "console-log sound panic usb-redirection vsock gpu host-device guest-agent hyperv-enlightenments clock",
        "live-migration hook-sidecars",
    ),
    **impossible(
        ("cpu-hotplug/arm64", "QEMU adds no CPUs to running arm64 machines"),
        ("watchdog/arm64", "QEMU's arm64 machine has no watchdog"),
        ("sound/s390x disk-usb/s390x usb-redirection/s390x", "s390x machines have neither sound nor USB"),
        ("disk-sata/arm64 disk-sata/s390x", "only x86 machines have a SATA controller"),
        ("efi/s390x secure-boot/s390x acpi-tables/s390x", "s390x machines have no EFI and no ACPI"),
        ("hyperv-enlightenments/arm64 hyperv-enlightenments/s390x", "the enlightenments are for x86 guests"),
        ("sev/arm64 sev/s390x", "SEV is a feature of AMD's x86 processors"),
        ("tdx/arm64 tdx/s390x", "TDX is a feature of Intel's x86 processors"),
    ),
}
"""What QEMU's machines have, whichever accelerator runs them."""


def described(
    *,
    name: str,
    title: str,
    device: str,
    processes: tuple[str, ...],
    vcpu_thread: str,
    overheads: Overheads = OVERHEADS,
) -> Descriptor:
    """A description of QEMU with one accelerator, by what is the accelerator's."""
    return Descriptor(
        name=name,
        title=title,
        overheads=overheads,
        launcher_image="virt-launcher",
        uri="qemu:///session",
        daemon="virtqemud",
        device=device,
        emulation="qemu",
        machines=True,
        learned=Learned(
            programs=("bin/qemu-system-*", "libexec/qemu-kvm", "sbin/virtqemud", "sbin/libvirtd"),
            directory="qemu/cache/capabilities",
        ),
        processes=processes,
        vcpu_thread=vcpu_thread,
    )


class Qemu(Hypervisor):
    """QEMU with some accelerator."""

    domain_type: ClassVar[str]
    """Type of the domain where CPUs are not emulated."""
    kernel_threads: ClassVar[tuple[str, ...]] = ()
    migration: ClassVar[Migration] = QemuMigration()

    def build(self, vmi: VMI, context: Context) -> Element:
        return document.build(vmi, context, self.descriptor.emulation if context.emulated else self.domain_type)

    def make_room(self, domain: Element, vmi: VMI) -> None:
        controllers.make_room(domain, vmi)

    def more_memory(self, running: Element, memory: int) -> Element | None:
        return growth.device(running, memory)

    def adapt(self, domain: Element, context: Context) -> Element:
        return adapt.adapt(domain, context)

    def sweep(self, running: Element, ask: Ask) -> bool:
        return images.sweep(running, ask)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        files = {"qemu.conf": _QEMU_CONF}
        logs = ("qemu/log/*.log", paths.vmi_socket("*", "virt-serial*-log"))
        return daemons.plan(self.descriptor, settings, files, directories=("qemu/nvram",), logs=logs)

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (*super().proof(machine), Program(f"qemu-system-{machine}"))

    def tuning(self, vmi: VMI, context: Context) -> Tuning:
        cpu, memory = vmi.spec.domain.cpu, vmi.spec.domain.memory
        reserved = memory.reserved_overhead if memory else None
        return Tuning(
            lock_memory=context.direct_memory_access
            or traits.realtime(vmi)
            or traits.sev(vmi)
            or (reserved is not None and reserved.mem_lock == "Required"),
            realtime_vcpus=cpu.realtime.mask if cpu and cpu.realtime else None,
            isolate_emulator=bool(cpu and cpu.dedicated_cpu_placement and cpu.isolate_emulator_thread),
            kernel_threads=self.kernel_threads if traits.dedicated_cpus(vmi) else (),
        )

    def devices(self, vmi: VMI, *, emulated: bool) -> tuple[str, ...]:
        return (*super().devices(vmi, emulated=emulated), *needs.devices(vmi, emulated=emulated))

    def memory(self, vmi: VMI) -> int:
        return super().memory(vmi) + needs.memory(vmi)
