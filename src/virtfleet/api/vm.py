"""A virtual machine that can be started and stopped: it keeps an instance running, or not, as its run strategy says."""

from __future__ import annotations

from msgspec import field

from virtfleet.api.disks import ClaimSource, DataVolumeSource, Disk
from virtfleet.api.meta import Condition, KubernetesObject
from virtfleet.api.view import Raw, Required, View
from virtfleet.api.vmi import VirtualMachineInstanceTemplateSpec
from virtfleet.api.vmistatus import ChangedBlockTrackingStatus, GuestABI, StorageMigratedVolumeInfo


class VirtualMachineSpec(View):
    """What runs, and when."""

    template: Required[VirtualMachineInstanceTemplateSpec] = field(default_factory=VirtualMachineInstanceTemplateSpec)
    """The instance that it runs."""
    run_strategy: str = ""
    """Always, RerunOnFailure, Manual, Halted, Once or WaitAsReceiver."""
    running: bool | None = None
    """Older form of runStrategy: true is Always, false is Halted."""
    data_volume_templates: list[DataVolumeTemplateSpec] = []
    """Claims that are made with the VM and filled by CDI."""
    instancetype: InstancetypeMatcher | None = None
    """Sizes taken from an instance type."""
    preference: InstancetypeMatcher | None = None
    """Devices taken from a preference."""
    update_volumes_strategy: str = ""
    """What a change of the volumes does: Replacement or Migration."""


class VirtualMachineStatus(View):
    """What is known of the VM."""

    printable_status: str = ""
    """State in one word, as kubectl shows it."""
    created: bool | None = None
    """Whether an instance exists."""
    ready: bool | None = None
    """Whether the instance is ready."""
    run_strategy: str = ""
    """Run strategy in force."""
    changed_block_tracking: ChangedBlockTrackingStatus | None = None
    conditions: list[Condition] = []
    desired_generation: int | None = None
    instancetype_ref: InstancetypeStatusRef | None = None
    memory_dump_request: VirtualMachineMemoryDumpRequest | None = None
    observed_generation: int | None = None
    preference_ref: InstancetypeStatusRef | None = None
    restore_in_progress: str = ""
    snapshot_in_progress: str = ""
    start_failure: VirtualMachineStartFailure | None = None
    state_change_requests: list[VirtualMachineStateChangeRequest] = []
    volume_requests: list[VirtualMachineVolumeRequest] = []
    volume_snapshot_statuses: list[VolumeSnapshotStatus] = []
    volume_update_state: VolumeUpdateState | None = None
    guest_abi: GuestABI | None = field(name="guestABI", default=None)
    """The machine as the guest knows it from its last run, which the next one keeps."""


class VirtualMachine(KubernetesObject):
    """A virtual machine that can be started and stopped."""

    spec: Required[VirtualMachineSpec] = field(default_factory=VirtualMachineSpec)
    """What runs, and when."""
    status: VirtualMachineStatus = field(default_factory=VirtualMachineStatus)
    """What is known of it."""


class InstancetypeMatcher(View):
    """An instance type or preference."""

    name: str = ""
    """Its name."""
    kind: str = ""
    """Its kind, namespaced or cluster wide."""
    revision_name: str = ""
    """The exact revision in use."""
    infer_from_volume: str = ""
    """Take the name from this volume's claim."""
    infer_from_volume_failure_policy: str = ""
    """Reject or Ignore."""


class DataVolumeTemplateSpec(KubernetesObject):
    """A claim that is made with the VM."""

    spec: Required[Raw] | None = None
    """What CDI fills it with."""


class ControllerRevisionRef(View):
    """A stored revision."""

    name: str = ""


class InstancetypeStatusRef(View):
    """The instance type in force."""

    controller_revision_ref: ControllerRevisionRef | None = None
    infer_from_volume: str = ""
    infer_from_volume_failure_policy: str = ""
    kind: str = ""
    name: str = ""


class VirtualMachineStateChangeRequest(View):
    """A start or stop that waits to be carried out."""

    action: Required[str] = ""
    data: dict[str, str] = {}
    uid: str = ""


class VirtualMachineStartFailure(View):
    """Starts that failed one after the other."""

    consecutive_fail_count: int | None = None
    last_failed_vmi_uid: str = field(name="lastFailedVMIUID", default="")
    retry_after_timestamp: str = ""


class VirtualMachineMemoryDumpRequest(View):
    """A memory dump that was asked for."""

    claim_name: Required[str] = ""
    end_timestamp: str = ""
    file_name: str = ""
    message: str = ""
    phase: Required[str] = ""
    remove: bool | None = None
    start_timestamp: str = ""


class VirtualMachineVolumeRequest(View):
    """A volume that waits to be added or removed."""

    add_volume_options: AddVolumeOptions | None = None
    remove_volume_options: RemoveVolumeOptions | None = None


class RemoveVolumeOptions(View):
    """A volume to remove."""

    dry_run: list[str] = []
    name: Required[str] = ""


class AddVolumeOptions(RemoveVolumeOptions):
    """A volume to add."""

    disk: Required[Disk] | None = None
    volume_source: Required[HotplugVolumeSource] | None = None


class HotplugVolumeSource(View):
    """The claim behind an added volume."""

    data_volume: DataVolumeSource | None = None
    persistent_volume_claim: ClaimSource | None = None


class VolumeSnapshotStatus(View):
    """Whether a volume can be snapshotted."""

    enabled: Required[bool] | None = None
    name: Required[str] = ""
    reason: str = ""


class VolumeUpdateState(View):
    """Volumes that are being replaced."""

    volume_migration_state: VolumeMigrationState | None = None


class VolumeMigrationState(View):
    """Volumes whose data is being moved."""

    migrated_volumes: list[StorageMigratedVolumeInfo] = []
