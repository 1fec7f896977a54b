"""The hypervisors whose VMM is QEMU: what they have in common, which is all but the accelerator, and each of them."""

from __future__ import annotations

from typing import ClassVar, Final
from xml.etree.ElementTree import Element

from msgspec.structs import replace

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Evidence, Hypervisor, Overheads, Tuning
from virtfleet.hypervisors.migration import Ask, Migration
from virtfleet.hypervisors.proof import Learned, Step, TinyGuest
from virtfleet.hypervisors.qemu import adapt, controllers, document, images, machine
from virtfleet.hypervisors.qemu.migration import QemuMigration
from virtfleet.hypervisors.support import Level, Support, Supports, impossible, works

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


# A guest that shows whether hardware virtualisation really works: QEMU boots a firmware of a few instructions. A device
# node that opens is no proof: where virtualisation is itself emulated, each instruction may take so long that no guest
# ever gets to its end. This one switches to protected mode and copies memory, which takes milliseconds on hardware.
# Assembled from: cli; lgdt; protected mode on; flat segments; four times: copy 16 MiB with `rep movsl`; then write 16
# to port 0x501, where the device that ends the emulator is.
_CODE = bytes.fromhex(
    "fa2e660f011659000f20c00c010f22c066ea1800ffff0800"
    "66b810008ed88ec0bb04000000be00000001bf00000002b900004000f3a54b75ec66ba0105b010eef4"
    "0000000000000000ffff0000009acf00ffff00000092cf0017004100ffff"
)
_JUMP_TO_START = b"\xe9\x0d\x00".ljust(16, b"\xf4")  # at the processor's reset vector, 16 bytes before the end
_TINY_GUEST: Final = TinyGuest(
    command=(
        *("qemu-system-x86_64", "-accel", "kvm", "-machine", "pc", "-m", "64", "-nodefaults", "-display", "none"),
        *("-bios", "{rom}", "-device", "isa-debug-exit,iobase=0x501,iosize=1"),
    ),
    files={"rom": _CODE.ljust((1 << 16) - 16, b"\xf4") + _JUMP_TO_START},
    does="copies 64 MiB of memory",
    status=33,  # the exit code that the firmware asks for
    seconds=10.0,
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
        return machine.more_memory(running, memory)

    def adapt(self, domain: Element, context: Context) -> Element:
        return adapt.adapt(domain, context)

    def sweep(self, running: Element, ask: Ask) -> bool:
        return images.sweep(running, ask)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        files = {"qemu.conf": _QEMU_CONF}
        logs = ("qemu/log/*.log", paths.vmi_socket("*", "virt-serial*-log"))
        return daemons.plan(self.descriptor, settings, files, directories=("qemu/nvram",), logs=logs)

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
        spec = vmi.spec.domain.devices
        wanted = {
            "vhost-net": not emulated and any((i.model or "virtio") == "virtio" for i in traits.taps(vmi)),
            "vhost-vsock": spec.autoattach_vsock,
            "sev": traits.sev(vmi),
            "tdx": traits.tdx(vmi),
            "pr-helper": any(d.lun and d.lun.reservation for d in spec.disks),
        }
        return (*super().devices(vmi, emulated=emulated), *(name for name, asked in wanted.items() if asked))

    def memory(self, vmi: VMI) -> int:
        spec = vmi.spec.domain
        mebibytes = (
            (8, spec.io_threads_policy or any(d.dedicated_io_thread for d in spec.devices.disks)),
            (32, traits.graphics(vmi)),
            (53, spec.devices.tpm and spec.devices.tpm.enabled is not False),
            (128, vmi.spec.architecture == "arm64"),  # its firmware
            (256, traits.sev(vmi)),  # encrypted memory
        )
        return super().memory(vmi) + 2**20 * sum(amount for amount, needed in mebibytes if needed)


class QemuKvm(Qemu):
    """QEMU with KVM: the default, and the measure for all others."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="qemu-kvm",
        title="QEMU with KVM",
        overheads=Overheads(daemon="32Mi", vmm="60Mi", emulation=f"{adapt.TRANSLATED_CODE_MIB}Mi"),
        launcher_image="virt-launcher",
        uri="qemu:///session",
        daemon="virtqemud",
        device="kvm",
        emulation="qemu",
        machines=True,
        learned=Learned(
            programs=("bin/qemu-system-*", "libexec/qemu-kvm", "sbin/virtqemud", "sbin/libvirtd"),
            directory="qemu/cache/capabilities",
        ),
        program="qemu-system-{machine}",
        processes=("qemu-system", "qemu-kvm"),
        vcpu_thread=r"^CPU (\d+)/(?:KVM|TCG)",
    )
    evidence = Evidence.GUESTS
    domain_type = "kvm"
    kernel_threads = ("kvm-pit",)
    supports: ClassVar[Supports] = QEMU | works("kvm-hidden sev tdx")

    def proof(self, machine: str) -> tuple[Step, ...]:
        guest = (_TINY_GUEST,) if machine == "x86_64" else ()  # seen to lie on x86 only
        return (*super().proof(machine), *guest)


class Mshv(Qemu):
    """QEMU with the Microsoft hypervisor's root partition (/dev/mshv)."""

    descriptor: ClassVar[Descriptor] = replace(
        QemuKvm.descriptor,
        name="mshv",
        title="QEMU with the Microsoft hypervisor",
        overheads=replace(QemuKvm.descriptor.overheads, estimate="measured with the same QEMU, but without /dev/mshv"),
        device="mshv",
        processes=("qemu-system",),
        vcpu_thread=r"^CPU (\d+)/(?:MSHV|TCG)",
    )
    evidence = Evidence.SCHEMA
    domain_type = "hyperv"
    supports: ClassVar[Supports] = {
        **QEMU,
        **impossible(
            ("kvm-hidden", "there is no KVM to hide"),
            ("sev tdx", "QEMU's MSHV accelerator starts no confidential VMs"),
        ),
        "live-migration": Support(
            Level.EXPERIMENTAL,
            "only the latest QEMU transfers the state of CPUs on MSHV",
            gate="ConfigurableHypervisor",
        ),
    }
