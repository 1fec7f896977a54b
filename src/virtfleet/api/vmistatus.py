"""What VirtFleet reports of a virtual machine instance. Nobody but its components writes these fields."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.domainspec import Machine
from virtfleet.api.meta import Condition, PhaseTransitionTimestamp
from virtfleet.api.migration import VirtualMachineInstanceMigrationState
from virtfleet.api.quantity import Amount
from virtfleet.api.view import OneOf, Required, View


class VirtualMachineInstanceStatus(View):
    """What is known of the VM."""

    phase: str = ""
    """Pending, Scheduling, Scheduled, Running, Succeeded, Failed or Unknown."""
    conditions: list[Condition] = []
    """Aspects of its state."""
    node_name: str = ""
    """Node that it runs on."""
    interfaces: list[VirtualMachineInstanceNetworkInterface] = []
    """Interfaces with their addresses."""
    volume_status: list[VolumeStatus] = []
    """State of its volumes."""
    guest_os_info: VirtualMachineInstanceGuestOSInfo | None = field(name="guestOSInfo", default=None)
    """What the guest agent tells of the operating system."""
    reason: str = ""
    """Why it is in this phase, in one word."""
    migration_state: VirtualMachineInstanceMigrationState | None = None
    """The running or the last migration."""
    memory: MemoryStatus | None = None
    """Memory at boot, now, and asked for."""
    machine: Machine | None = None
    """Machine type that it really has."""
    active_pods: dict[str, str] = {}
    """Pods of this VM by UID, with their nodes."""
    current_cpu_topology: CPUTopology | None = field(name="currentCPUTopology", default=None)
    """CPU topology in use."""
    runtime_user: int | None = None
    """User that the hypervisor runs as."""
    vsock_cid: int | None = field(name="VSOCKCID", default=None)
    changed_block_tracking: ChangedBlockTrackingStatus | None = None
    evacuation_node_name: str = ""
    fs_freeze_status: str = ""
    kernel_boot_status: KernelBootStatus | None = None
    launcher_container_image_version: str = ""
    migrated_volumes: list[StorageMigratedVolumeInfo] = []
    migration_method: str = ""
    migration_transport: str = ""
    phase_transition_timestamps: list[PhaseTransitionTimestamp] = []
    qos_class: Annotated[str, OneOf("BestEffort", "Burstable", "Guaranteed")] = ""
    selinux_context: str = ""
    topology_hints: TopologyHints | None = None
    virtual_machine_revision_name: str = ""
    guest_abi: GuestABI | None = field(name="guestABI", default=None)
    """The machine as the guest knows it, which it keeps over restarts and moves."""
    pod_room: PodRoom | None = None
    """Sizes that its Pod has room for, where they were changed while it runs."""


class PodRoom(View):
    """Up to where a VM may grow in the Pod that it is in."""

    pod_uid: str = field(name="podUID", default="")
    """The Pod."""
    sockets: int | None = None
    """Sockets."""
    guest: Amount | None = None
    """Memory."""


class GuestABI(View):
    """What a guest relies on of its machine, as the running domain has it."""

    machine: str = ""
    """Machine type, with its version."""
    loader: str = ""
    """EFI firmware."""
    variables: str = ""
    """What the firmware's variables were made from."""
    secure_boot: bool = False
    """Whether the firmware checks what it boots."""
    devices: list[GuestDevice] = []
    """Devices with the places where the guest sees them."""
    cpu: GuestCPU | None = None
    """The CPU of this run; a restart may bring another."""


class GuestDevice(View):
    """A device and its place."""

    name: Required[str] = ""
    """Kind, model, and name in the spec or number."""
    address: str = ""
    """PCI address."""
    mac: str = ""
    """Hardware address of an interface."""
    target: str = ""
    """Name of a disk on its bus."""


class GuestCPU(View):
    """A CPU as the guest sees it."""

    model: str = ""
    """Its model, as libvirt calls it."""
    features: list[str] = []
    """Features beyond the model; those after a minus the model has, and this CPU does not."""


class VirtualMachineInstanceNetworkInterface(View):
    """One interface as it is."""

    name: str = ""
    """Its name in the spec."""
    ip_address: str = ""
    """First address."""
    ip_addresses: list[str] = []
    """All addresses."""
    mac: str = ""
    """MAC address."""
    interface_name: str = ""
    """Name in the guest."""
    link_state: str = ""
    """up or down."""
    info_source: str = ""
    """Who told: domain, guest-agent, multus-status."""
    pod_interface_name: str = ""
    queue_count: int | None = None


class VirtualMachineInstanceGuestOSInfo(View):
    """What the guest agent tells of the operating system."""

    id: str = ""
    kernel_release: str = ""
    kernel_version: str = ""
    machine: str = ""
    name: str = ""
    pretty_name: str = ""
    version: str = ""
    version_id: str = ""


class VolumeStatus(View):
    """State of one volume."""

    name: Required[str] = ""
    """Its name in the spec."""
    target: Required[str] = ""
    """Device name in the guest."""
    phase: str = ""
    """State of a volume that is added or removed while the VM runs."""
    container_disk_volume: Checksum | None = None
    hotplug_volume: HotplugVolumeStatus | None = None
    memory_dump_volume: DomainMemoryDumpInfo | None = None
    message: str = ""
    persistent_volume_claim_info: PersistentVolumeClaimInfo | None = None
    reason: str = ""
    size: int | None = None


class PersistentVolumeClaimInfo(View):
    """A claim as it is."""

    access_modes: list[str] = []
    capacity: dict[str, Amount] = {}
    claim_name: str = ""
    filesystem_overhead: str = ""
    preallocated: bool | None = None
    requests: dict[str, Amount] = {}
    volume_mode: Annotated[str, OneOf("Block", "Filesystem", "FromStorageProfile")] = ""


class HotplugVolumeStatus(View):
    """The Pod that holds an added volume."""

    attach_pod_name: str = ""
    attach_pod_uid: str = field(name="attachPodUID", default="")


class DomainMemoryDumpInfo(View):
    """A memory dump."""

    claim_name: str = ""
    end_timestamp: str = ""
    start_timestamp: str = ""
    target_file_name: str = ""


class Checksum(View):
    """Checksum of an image's content."""

    checksum: int | None = None


class KernelBootStatus(View):
    """Checksums of the booted kernel."""

    initrd_info: Checksum | None = None
    kernel_info: Checksum | None = None


class CPUTopology(View):
    """Sockets, cores and threads."""

    cores: int | None = None
    sockets: int | None = None
    threads: int | None = None


class MemoryStatus(View):
    """Sizes of the guest's memory."""

    guest_at_boot: Amount | None = None
    guest_current: Amount | None = None
    guest_requested: Amount | None = None
    memory_overhead: Amount | None = None


class TopologyHints(View):
    """What must be equal on every node that the VM moves to."""

    tsc_frequency: int | None = None
    """Frequency of the time stamp counter."""


class StorageMigratedVolumeInfo(View):
    """A volume that moves to another claim."""

    destination_pvc_info: PersistentVolumeClaimInfo | None = field(name="destinationPVCInfo", default=None)
    source_pvc_info: PersistentVolumeClaimInfo | None = field(name="sourcePVCInfo", default=None)
    volume_name: Required[str] = ""


class ChangedBlockTrackingStatus(View):
    """Recording of changed blocks."""

    backup_status: VirtualMachineInstanceBackupStatus | None = None
    state: Required[str] = ""


class VirtualMachineInstanceBackupStatus(View):
    """The running or the last backup."""

    backup_msg: str = ""
    backup_name: str = ""
    checkpoint_name: str = ""
    completed: bool | None = None
    end_timestamp: str = ""
    failed: bool | None = None
    quiesce_status: str = ""
    start_timestamp: str = ""
    volumes: list[VirtualMachineInstanceBackupVolumeInfo] = []


class VirtualMachineInstanceBackupVolumeInfo(View):
    """A volume in a backup."""

    volume_name: Required[str] = ""
