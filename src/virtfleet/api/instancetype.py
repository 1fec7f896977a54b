"""Instance types, which say how large a VM is, and preferences, which say what its guest likes where it is silent."""

from __future__ import annotations

from msgspec import field

from virtfleet.api.devices import GPU, HostDevice, TPMDevice, VGPUOptions
from virtfleet.api.disks import BlockSize
from virtfleet.api.domainspec import (
    EFI,
    NUMA,
    ClockOffsetUTC,
    CPUFeature,
    DiskIOThreads,
    FeatureAPIC,
    FeatureHyperv,
    FeatureKVM,
    Hugepages,
    LaunchSecurity,
    Realtime,
    Timer,
)
from virtfleet.api.meta import FeatureState, KubernetesObject
from virtfleet.api.quantity import Amount
from virtfleet.api.view import Empty, Required, View


class CPUInstancetype(View):
    """The virtual CPUs."""

    guest: Required[int] = 0
    """Virtual CPUs that the guest sees."""
    model: str | None = None
    """CPU model: a name, host-model or host-passthrough."""
    dedicated_cpu_placement: bool | None = field(name="dedicatedCPUPlacement", default=None)
    """Give every virtual CPU a physical CPU of its own."""
    numa: NUMA | None = None
    """Show the guest the NUMA nodes it runs on."""
    isolate_emulator_thread: bool | None = None
    """Give the emulator one more physical CPU."""
    realtime: Realtime | None = None
    """Schedule the virtual CPUs with real-time priority."""
    max_sockets: int | None = None
    """Sockets up to which CPUs may be added while the VM runs."""


class MemoryInstancetype(View):
    """The memory."""

    guest: Required[Amount] = 0
    """Memory that the guest sees."""
    hugepages: Hugepages | None = None
    """Back the memory with huge pages."""
    overcommit_percent: int = 0
    """How much less than the guest sees is requested of the node, in percent."""
    max_guest: Amount | None = None
    """Memory up to which the VM may grow while it runs."""


class VirtualMachineInstancetypeSpec(View):
    """How large a VM is."""

    cpu: Required[CPUInstancetype] = field(default_factory=CPUInstancetype)
    """The virtual CPUs."""
    memory: Required[MemoryInstancetype] = field(default_factory=MemoryInstancetype)
    """The memory."""
    gpus: list[GPU] = []
    """Graphics devices of the node, whole or virtual."""
    host_devices: list[HostDevice] = []
    """Other devices of the node."""
    io_threads_policy: str | None = None
    """How threads for disk I/O are shared: shared, auto or supplementalPool."""
    io_threads: DiskIOThreads | None = None
    """Settings of the thread pool for disk I/O."""
    launch_security: LaunchSecurity | None = None
    """Memory encryption and attestation; deprecated, use preferredLaunchSecurity of a preference."""
    node_selector: dict[str, str] = {}
    """Labels that nodes must have."""
    scheduler_name: str = ""
    """Scheduler that places the VM."""
    annotations: dict[str, str] = {}
    """Annotations that the VM's instances get."""


class VirtualMachineInstancetype(KubernetesObject):
    """How large VMs of a namespace are that name it."""

    spec: Required[VirtualMachineInstancetypeSpec] = field(default_factory=VirtualMachineInstancetypeSpec)
    """What VMs of this type have."""


class VirtualMachineClusterInstancetype(VirtualMachineInstancetype):
    """How large VMs of any namespace are that name it."""


class ClockOffset(View):
    """Where the clock starts."""

    utc: ClockOffsetUTC | None = None
    """Start with UTC."""
    timezone: str | None = None
    """Start with the local time of this zone."""


class ClockPreferences(View):
    """The guest's clock."""

    preferred_clock_offset: ClockOffset | None = None
    """Where the clock starts."""
    preferred_timer: Timer | None = None
    """Timer devices."""


class SpreadOptions(View):
    """How virtual CPUs are spread with the topology `spread`."""

    across: str | None = None
    """SocketsCores, CoresThreads or SocketsCoresThreads; the first where not set."""
    ratio: int | None = None
    """Cores per socket, or threads per core with CoresThreads; 2 where not set."""


class CPUPreferences(View):
    """The virtual CPUs."""

    preferred_cpu_topology: str | None = field(name="preferredCPUTopology", default=None)
    """What the guest sees an instance type's CPUs as: sockets, cores, threads, spread or any."""
    spread_options: SpreadOptions | None = None
    """How they are spread with the topology `spread`."""
    preferred_cpu_features: list[CPUFeature] = field(name="preferredCPUFeatures", default=[])
    """CPU features to require or switch off."""


class DevicePreferences(View):
    """Devices of the VM."""

    preferred_autoattach_graphics_device: bool | None = None
    """Whether there is the default graphics device."""
    preferred_autoattach_mem_balloon: bool | None = None
    """Whether there is a memory balloon."""
    preferred_autoattach_pod_interface: bool | None = None
    """Whether there is the default interface."""
    preferred_autoattach_serial_console: bool | None = None
    """Whether there is the default serial console."""
    preferred_autoattach_input_device: bool | None = None
    """Whether there is an input device where none is given."""
    preferred_disable_hotplug: bool | None = None
    """Whether devices can be added while the VM runs."""
    preferred_virtual_gpu_options: VGPUOptions | None = field(name="preferredVirtualGPUOptions", default=None)
    """Options of virtual GPUs."""
    preferred_sound_model: str = ""
    """Model of a sound card."""
    preferred_use_virtio_transitional: bool | None = None
    """Whether virtio devices are such that old guests understand."""
    preferred_input_bus: str = ""
    """Bus of input devices."""
    preferred_input_type: str = ""
    """Type of input devices."""
    preferred_disk_bus: str = ""
    """Bus of disks."""
    preferred_lun_bus: str = ""
    """Bus of LUNs."""
    preferred_cdrom_bus: str = ""
    """Bus of CD-ROM drives."""
    preferred_disk_dedicated_io_thread: bool | None = None
    """Whether virtio disks have an I/O thread of their own."""
    preferred_disk_cache: str = ""
    """Cache mode of disks."""
    preferred_disk_io: str = field(name="preferredDiskIO", default="")
    """I/O mode of disks."""
    preferred_disk_block_size: BlockSize | None = None
    """Block size of disks."""
    preferred_interface_model: str = ""
    """Model of network interfaces."""
    preferred_rng: Empty | None = None
    """A source of randomness for the guest."""
    preferred_block_multi_queue: bool | None = None
    """Whether virtio disks have one queue per virtual CPU."""
    preferred_network_interface_multi_queue: bool | None = None
    """Whether virtio interfaces have one queue per virtual CPU."""
    preferred_tpm: TPMDevice | None = field(name="preferredTPM", default=None)
    """A virtual TPM."""
    preferred_interface_masquerade: Empty | None = None
    """Whether interfaces of the pod network that say no binding have masquerade."""
    preferred_panic_device_model: str | None = None
    """Model of the device that reports a guest's panic."""
    preferred_video_type: str | None = None
    """Type of the video device."""


class FeaturePreferences(View):
    """Hypervisor features."""

    preferred_acpi: FeatureState | None = None
    """ACPI."""
    preferred_apic: FeatureAPIC | None = None
    """APIC."""
    preferred_hyperv: FeatureHyperv | None = None
    """Hyper-V enlightenments, each where the VM says nothing of it."""
    preferred_kvm: FeatureKVM | None = None
    """Whether KVM hides from the guest."""
    preferred_pvspinlock: FeatureState | None = None
    """Paravirtual spinlocks."""
    preferred_smm: FeatureState | None = None
    """System management mode."""


class FirmwarePreferences(View):
    """How the VM boots."""

    preferred_use_bios: bool | None = None
    """Boot with BIOS."""
    preferred_use_bios_serial: bool | None = None
    """Whether the BIOS writes to the serial console."""
    preferred_use_efi: bool | None = None
    """Boot with EFI; deprecated, use preferredEfi."""
    preferred_use_secure_boot: bool | None = None
    """Whether EFI starts signed loaders only; deprecated, use preferredEfi."""
    preferred_efi: EFI | None = None
    """Boot with EFI."""


class MachinePreferences(View):
    """The kind of machine."""

    preferred_machine_type: str = ""
    """Machine type."""


class VolumePreferences(View):
    """Volumes of the VM."""

    preferred_storage_class_name: str = ""
    """Storage class of the VM's data volumes."""


class CPUPreferenceRequirement(View):
    """The least of CPUs."""

    guest: Required[int] = 0
    """Virtual CPUs that the guest needs."""


class MemoryPreferenceRequirement(View):
    """The least of memory."""

    guest: Required[Amount] = 0
    """Memory that the guest needs."""


class PreferenceRequirements(View):
    """What a VM with this preference must have."""

    cpu: CPUPreferenceRequirement | None = None
    """The least of CPUs."""
    memory: MemoryPreferenceRequirement | None = None
    """The least of memory."""
    architecture: str | None = None
    """The architecture."""


class VirtualMachinePreferenceSpec(View):
    """What a guest likes, where its VM says nothing else."""

    clock: ClockPreferences | None = None
    """The guest's clock."""
    cpu: CPUPreferences | None = None
    """The virtual CPUs."""
    devices: DevicePreferences | None = None
    """Devices of the VM."""
    features: FeaturePreferences | None = None
    """Hypervisor features."""
    firmware: FirmwarePreferences | None = None
    """How the VM boots."""
    machine: MachinePreferences | None = None
    """The kind of machine."""
    volumes: VolumePreferences | None = None
    """Volumes of the VM."""
    preferred_subdomain: str | None = None
    """DNS subdomain of the VM."""
    preferred_termination_grace_period_seconds: int | None = None
    """Seconds that the guest has to shut down."""
    requirements: PreferenceRequirements | None = None
    """What a VM with this preference must have."""
    annotations: dict[str, str] = {}
    """Annotations that the VM's instances get."""
    prefer_spread_socket_to_core_ratio: int = 0
    """Cores per socket with the topology `spread`; 2 where not set."""
    preferred_architecture: str | None = None
    """Architecture of the VM."""
    preferred_launch_security: LaunchSecurity | None = None
    """Memory encryption and attestation."""


class VirtualMachinePreference(KubernetesObject):
    """What guests of a namespace like whose VMs name it."""

    spec: Required[VirtualMachinePreferenceSpec] = field(default_factory=VirtualMachinePreferenceSpec)
    """What those guests like."""


class VirtualMachineClusterPreference(VirtualMachinePreference):
    """What guests of any namespace like whose VMs name it."""
