"""The virtual hardware of a VM but for its devices: CPU, memory, firmware, clock, features."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.devices import Devices
from virtfleet.api.meta import ContainerResources, FeatureState
from virtfleet.api.quantity import Amount
from virtfleet.api.view import Empty, OneOf, Required, View


class ResourceRequirements(ContainerResources):
    """What the VM's Pod asks for. The hypervisor's own need is added by VirtFleet."""

    overcommit_guest_overhead: bool | None = None
    """Do not add the hypervisor's own need to the request."""


class DomainSpec(View):
    """The virtual hardware of the VM."""

    devices: Required[Devices] = field(default_factory=Devices)
    """Disks, network interfaces and all other devices."""
    cpu: CPU | None = None
    """Number, topology and model of the virtual CPUs."""
    memory: Memory | None = None
    """Memory that the guest sees."""
    machine: Machine | None = None
    """Machine type."""
    firmware: Firmware | None = None
    """How the VM boots, and the identity its firmware shows."""
    features: Features | None = None
    """Hypervisor features such as ACPI or the Hyper-V enlightenments."""
    clock: Clock | None = None
    """Where the guest's time comes from."""
    resources: ResourceRequirements = field(default_factory=ResourceRequirements)
    """What the VM's Pod asks the cluster for."""
    chassis: Chassis | None = None
    """What the guest reads from DMI as its chassis."""
    io_threads_policy: str = ""
    """How threads for disk I/O are shared: shared, auto or supplementalPool."""
    io_threads: DiskIOThreads | None = None
    """Settings of the thread pool for disk I/O."""
    launch_security: LaunchSecurity | None = None
    """Memory encryption and attestation."""
    reboot_policy: str = ""
    """Whether a reboot by the guest restarts the VM in place (Reboot) or ends it (Terminate)."""


class CPU(View):
    """The virtual CPUs."""

    cores: int | None = None
    """Cores per socket."""
    sockets: int | None = None
    """Sockets."""
    threads: int | None = None
    """Threads per core."""
    max_sockets: int | None = None
    """Sockets up to which CPUs may be added while the VM runs."""
    model: str = ""
    """CPU model: a name, host-model or host-passthrough."""
    features: list[CPUFeature] = []
    """CPU features to require or switch off."""
    dedicated_cpu_placement: bool | None = None
    """Give every virtual CPU a physical CPU of its own."""
    isolate_emulator_thread: bool | None = None
    """Give the emulator one more physical CPU."""
    numa: NUMA | None = None
    """Show the guest the NUMA nodes it runs on."""
    realtime: Realtime | None = None
    """Schedule the virtual CPUs with real-time priority."""


class CPUFeature(View):
    """One feature of the CPU model."""

    name: Required[str] = ""
    """Name of the feature."""
    policy: str = ""
    """force, require, optional, disable or forbid."""


class NUMA(View):
    """NUMA topology of the guest."""

    guest_mapping_passthrough: Empty | None = None
    """Mirror the nodes of the host that the VM's CPUs are on."""


class Realtime(View):
    """Real-time scheduling."""

    mask: str = ""
    """The virtual CPUs concerned, for example 0-3,^1; all of them where empty."""


class Memory(View):
    """The guest's memory."""

    guest: Amount | None = None
    """Size at boot."""
    max_guest: Amount | None = None
    """Size up to which memory may be added while the VM runs."""
    hugepages: Hugepages | None = None
    """Back the memory with huge pages."""
    reserved_overhead: ReservedOverhead | None = None
    """Memory that the VM's Pod needs beyond what is computed."""


class Hugepages(View):
    """Huge pages."""

    page_size: str = ""
    """Size of one page, such as 2Mi or 1Gi."""


class ReservedOverhead(View):
    """Memory beside the guest's own."""

    added_overhead: Amount | None = None
    """Added to the Pod's request."""
    mem_lock: str = ""
    """Whether the memory must be locked: Required or NotRequired."""


class Machine(View):
    """Machine type."""

    type: str = ""
    """For example q35, pc-q35-rhel9.2.0 or virt."""


class Firmware(View):
    """Firmware and direct boot."""

    uuid: str = ""
    """Identity of the machine in SMBIOS; made up once where empty."""
    serial: str = ""
    """Serial number in SMBIOS."""
    bootloader: Bootloader | None = None
    """BIOS or EFI."""
    kernel_boot: KernelBoot | None = None
    """Boot a kernel directly."""
    acpi: ACPI | None = None
    """Additional ACPI tables."""


class ACPI(View):
    """ACPI tables from secrets."""

    slic_name_ref: str = ""
    """Volume with the SLIC table."""
    msdm_name_ref: str = ""
    """Volume with the MSDM table."""


class Bootloader(View):
    """BIOS or EFI."""

    bios: BIOS | None = None
    """Boot with BIOS."""
    efi: EFI | None = None
    """Boot with EFI."""


class BIOS(View):
    """BIOS settings."""

    use_serial: bool | None = None
    """Also write the BIOS' output to the serial console."""


class EFI(View):
    """EFI settings."""

    secure_boot: bool | None = None
    """Run signed code only; the default. Needs the SMM feature."""
    persistent: bool | None = None
    """Keep the EFI variables over restarts."""


class KernelBoot(View):
    """A kernel that is booted without a boot loader."""

    container: KernelBootContainer | None = None
    """Image with the kernel and its initial ramdisk."""
    kernel_args: str = ""
    """Command line of the kernel."""


class KernelBootContainer(View):
    """A container image that holds a kernel."""

    image: Required[str] = ""
    """Image with the files."""
    kernel_path: str = ""
    """Path of the kernel in the image."""
    initrd_path: str = ""
    """Path of the initial ramdisk in the image."""
    image_pull_policy: Annotated[str, OneOf("Always", "IfNotPresent", "Never")] = ""
    """When the image is pulled."""
    image_pull_secret: str = ""
    """Secret for the registry."""


class Chassis(View):
    """Chassis information in SMBIOS."""

    asset: str = ""
    manufacturer: str = ""
    serial: str = ""
    sku: str = ""
    version: str = ""


class Clock(View):
    """The guest's clock."""

    utc: ClockOffsetUTC | None = None
    """Start with UTC."""
    timezone: str = ""
    """Start with the local time of this zone."""
    timer: Timer | None = None
    """Timer devices."""


class ClockOffsetUTC(View):
    """UTC plus an offset."""

    offset_seconds: int | None = None
    """Seconds added to UTC."""


class Timer(View):
    """Timer devices of the guest."""

    hpet: TickTimer | None = None
    """High precision event timer."""
    kvm: PresentTimer | None = None
    """KVM's paravirtual clock."""
    pit: TickTimer | None = None
    """Programmable interval timer."""
    rtc: RTCTimer | None = None
    """Real-time clock."""
    hyperv: PresentTimer | None = None
    """Hyper-V's reference time."""


class PresentTimer(View):
    """A timer that is there or not."""

    present: bool | None = None
    """Whether the guest sees the timer."""


class TickTimer(PresentTimer):
    """A timer with a rule for ticks that were missed."""

    tick_policy: str = ""
    """What happens to missed ticks: delay, catchup, merge or discard; the real-time clock knows the first two."""


class RTCTimer(TickTimer):
    """The real-time clock."""

    track: str = ""
    """What it follows: guest or wall."""


class FeatureAPIC(FeatureState):
    """The local interrupt controller."""

    end_of_interrupt: bool | None = None
    """Let the guest signal the end of an interrupt."""


class FeatureKVM(View):
    """KVM's own features."""

    hidden: bool | None = None
    """Hide KVM from the guest's view."""


class FeatureSpinlocks(FeatureState):
    """How long a virtual CPU spins on a lock."""

    spinlocks: int | None = None
    """Retries before the hypervisor is told; 4096 where not set."""


class FeatureVendorID(FeatureState):
    """The hypervisor's name as the guest sees it."""

    vendorid: str = ""
    """At most 12 characters."""


class SyNICTimer(FeatureState):
    """Synthetic timers."""

    direct: FeatureState | None = None
    """Deliver expirations directly."""


class TLBFlush(FeatureState):
    """Flushing of remote TLBs."""

    direct: FeatureState | None = None
    """Pass hypercalls of nested guests through."""
    extended: FeatureState | None = None
    """Flush ranges."""


class FeatureHyperv(View):
    """Enlightenments for Windows guests."""

    evmcs: FeatureState | None = None
    frequencies: FeatureState | None = None
    ipi: FeatureState | None = None
    reenlightenment: FeatureState | None = None
    relaxed: FeatureState | None = None
    reset: FeatureState | None = None
    runtime: FeatureState | None = None
    spinlocks: FeatureSpinlocks | None = None
    synic: FeatureState | None = None
    synictimer: SyNICTimer | None = None
    tlbflush: TLBFlush | None = None
    vapic: FeatureState | None = None
    vendorid: FeatureVendorID | None = None
    vpindex: FeatureState | None = None


class Features(View):
    """Features of the hypervisor."""

    acpi: FeatureState | None = None
    """ACPI; on by default."""
    apic: FeatureAPIC | None = None
    """The local interrupt controller."""
    hyperv: FeatureHyperv | None = None
    """Enlightenments for Windows guests."""
    hyperv_passthrough: FeatureState | None = None
    """All enlightenments that the host has."""
    kvm: FeatureKVM | None = None
    """KVM's own features."""
    pvspinlock: FeatureState | None = None
    """Paravirtual spinlocks."""
    smm: FeatureState | None = None
    """System management mode; secure boot needs it."""


class LaunchSecurity(View):
    """Confidential computing; one of the technologies."""

    sev: SEV | None = None
    """AMD SEV and SEV-ES."""
    snp: Empty | None = None
    """AMD SEV-SNP."""
    tdx: Empty | None = None
    """Intel TDX."""


class SEV(View):
    """AMD SEV."""

    policy: SEVPolicy | None = None
    """What the guest's owner demands."""
    attestation: Empty | None = None
    """Start paused, so that the owner can verify the measurement and inject secrets."""
    dh_cert: str = ""
    """The owner's Diffie-Hellman key, base64."""
    session: str = ""
    """The owner's session, base64."""


class SEVPolicy(View):
    """Demands on the platform."""

    encrypted_state: bool | None = None
    """Also encrypt the CPU registers (SEV-ES)."""


class DiskIOThreads(View):
    """The pool of I/O threads."""

    supplemental_pool_thread_count: int | None = None
    """Threads in the supplemental pool."""
