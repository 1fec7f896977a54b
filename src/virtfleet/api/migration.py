"""Moving a running VM to another node: the object that asks for it, and the state that both sides report."""

from __future__ import annotations

from typing import Any, Final

from msgspec import field

from virtfleet.api import times
from virtfleet.api.meta import Condition, KubernetesObject, PhaseTransitionTimestamp
from virtfleet.api.quantity import Amount
from virtfleet.api.view import Required, View


class VirtualMachineInstanceMigrationSpec(View):
    """Which VM, and where to."""

    vmi_name: str = ""
    """The VM that moves."""
    added_node_selector: dict[str, str] = {}
    """Labels that the target must have, besides the VM's own demands."""
    priority: str = ""
    """Place in the queue of migrations."""
    send_to: VirtualMachineInstanceMigrationSource | None = None
    """Send the VM to another cluster."""
    receive: VirtualMachineInstanceMigrationTarget | None = None
    """Receive a VM from another cluster."""


class VirtualMachineInstanceMigrationStatus(View):
    """How far the migration is."""

    phase: str = ""
    """Pending, Scheduling, Scheduled, PreparingTarget, TargetReady, Running, Succeeded or Failed."""
    conditions: list[Condition] = []
    migration_state: VirtualMachineInstanceMigrationState | None = None
    phase_transition_timestamps: list[PhaseTransitionTimestamp] = []
    synchronization_addresses: list[str] = []


class VirtualMachineInstanceMigration(KubernetesObject):
    """A request to move a running VM to another node."""

    spec: Required[VirtualMachineInstanceMigrationSpec] = field(default_factory=VirtualMachineInstanceMigrationSpec)
    """Which VM, and where to."""
    status: VirtualMachineInstanceMigrationStatus = field(default_factory=VirtualMachineInstanceMigrationStatus)
    """How far it is."""


class VirtualMachineInstanceMigrationSource(View):
    """Sending to another cluster."""

    migration_id: Required[str] = field(name="migrationID", default="")
    """Name that both sides use."""
    connect_url: Required[str] = field(name="connectURL", default="")
    """Address of the other side."""


class VirtualMachineInstanceMigrationTarget(View):
    """Receiving from another cluster."""

    migration_id: Required[str] = field(name="migrationID", default="")
    """Name that both sides use."""


class VirtualMachineInstanceMigrationState(View):
    """A migration as source and target report it."""

    abort_requested: bool | None = None
    abort_status: str = ""
    completed: bool | None = None
    end_timestamp: str = ""
    failed: bool | None = None
    failure_reason: str = ""
    migration_configuration: MigrationOptions | None = None
    migration_metrics: MigrationMetrics | None = None
    """How much goes along, and how fast: now and then while it lasts, and at its end."""
    migration_network_type: str = ""
    migration_policy_name: str = ""
    migration_uid: str = ""
    mode: str = ""
    source_node: str = ""
    source_persistent_state_pvc_name: str = field(name="sourcePersistentStatePVCName", default="")
    source_pod: str = ""
    source_end_timestamp: str = ""
    """When nothing of the guest was alive on the source any more; only then it may run on the target."""
    source_state: VirtualMachineInstanceMigrationSourceState | None = None
    start_timestamp: str = ""
    target_attachment_pod_uid: str = field(name="targetAttachmentPodUID", default="")
    target_cpu_set: list[int] = field(name="targetCPUSet", default_factory=list)
    target_direct_migration_node_ports: dict[str, int] = {}
    target_memory_overhead: Amount | None = None
    target_node: str = ""
    target_node_address: str = ""
    target_node_domain_detected: bool | None = None
    target_node_domain_ready_timestamp: str = ""
    target_node_topology: str = ""
    target_persistent_state_pvc_name: str = field(name="targetPersistentStatePVCName", default="")
    target_pod: str = ""
    target_state: VirtualMachineInstanceMigrationTargetState | None = None

    @property
    def ended(self) -> bool:
        """Whether neither handler has anything left to do for it."""
        return bool(self.completed or self.failed or self.end_timestamp)


class MigrationMetrics(View):
    """Figures of a migration."""

    elapsed_milliseconds: int = 0
    total_bytes: int = 0
    """Of memory and disks."""
    remaining_bytes: int = 0
    bytes_per_second: int = 0
    dirty_bytes_per_second: int = 0
    """What the guest writes anew."""
    downtime_milliseconds: int = 0
    """For how long the guest stood still; before the end, how long that will be as far as is known."""


def migration_failure(why: str, now: float | None = None) -> dict[str, Any]:
    """What a `migrationState` says of a migration that has failed: as with KubeVirt, it has completed as well."""
    return {"completed": True, "failed": True, "failureReason": why, "endTimestamp": times.timestamp(now)}


# What of it stands once more in the words of later versions of KubeVirt, by side.
_SIDES: Final = {
    "sourceState": {"sourcePersistentStatePVCName": "persistentStatePVCName"},
    "targetState": {
        "targetAttachmentPodUID": "attachmentPodUID",
        "targetDirectMigrationNodePorts": "directMigrationNodePorts",
        "targetNodeAddress": "nodeAddress",
        "targetNodeDomainDetected": "domainDetected",
        "targetNodeDomainReadyTimestamp": "domainReadyTimestamp",
        "targetPersistentStatePVCName": "persistentStatePVCName",
    },
}


def in_both_words(change: dict[str, Any]) -> dict[str, Any]:
    """A change of a `migrationState`, with what each side says of itself."""
    sides = {
        side: {**(change.get(side) or {}), **{word: change[ours] for ours, word in words.items() if ours in change}}
        for side, words in _SIDES.items()
    }
    return {**change, **{side: said for side, said in sides.items() if said}}


class MigrationSide(View):
    """What both sides report."""

    domain_name: str = ""
    domain_namespace: str = ""
    migration_uid: str = field(name="migrationUID", default="")
    node: str = ""
    persistent_state_pvc_name: str = field(name="persistentStatePVCName", default="")
    pod: str = ""
    selinux_context: str = ""
    sync_address: str = ""
    virtual_machine_instance_uid: str = field(name="virtualMachineInstanceUID", default="")


class VirtualMachineInstanceMigrationSourceState(MigrationSide):
    """What the source reports."""

    node_selectors: dict[str, str] = {}


class VirtualMachineInstanceMigrationTargetState(MigrationSide):
    """What the target reports."""

    attachment_pod_uid: str = field(name="attachmentPodUID", default="")
    cpu_set: list[int] = []
    direct_migration_node_ports: dict[str, int] = {}
    domain_detected: bool | None = None
    domain_ready_timestamp: str = ""
    node_address: str = ""
    node_topology: str = ""


class MigrationBehaviour(View):
    """What the cluster's settings say of migrations, and policies in their place."""

    allow_auto_converge: bool | None = None
    """Slow the guest down so that the migration can end."""
    allow_post_copy: bool | None = None
    """Let the guest run on the target before all memory is there."""
    allow_workload_disruption: bool | None = None
    """Pause the guest where nothing else lets the migration end."""
    bandwidth_per_migration: Amount | None = None
    """Bandwidth of one migration; unlimited where 0."""
    completion_timeout_per_gi_b: int | None = None
    """Seconds per GiB after which a migration is stopped."""
    max_downtime_ms: int | None = None
    """Longest pause at the end of a migration."""


class MigrationConfiguration(MigrationBehaviour):
    """Limits and behaviour of live migrations."""

    parallel_migrations_per_cluster: int | None = None
    """Migrations at one time."""
    parallel_outbound_migrations_per_node: int | None = None
    """Migrations away from one node at one time."""
    progress_timeout: int | None = None
    """Seconds without progress after which a migration is stopped."""
    unsafe_migration_override: bool | None = None
    """Migrate even where data could be damaged."""
    disable_tls: bool | None = field(name="disableTLS", default=None)
    """Do not encrypt migration traffic."""
    network: str = ""
    """Network attachment that migrations use."""
    node_drain_taint_key: str = ""
    """Taint that makes VMs leave a node."""
    match_selinux_level_on_migration: bool | None = field(name="matchSELinuxLevelOnMigration", default=None)
    """Keep the SELinux level on the target."""
    utility_volumes_timeout: int | None = None
    """Seconds to wait for utility volumes to be detached."""


class MigrationOptions(MigrationConfiguration):
    """The settings in force for one migration."""

    experimental: ExperimentalMigrationOptions | None = None


class MigrationPolicySelectors(View):
    """Labels that the VM, and its namespace, must have."""

    namespace_selector: dict[str, str] = {}
    """Labels of the namespace."""
    virtual_machine_instance_selector: dict[str, str] = {}
    """Labels of the VM."""


class MigrationPolicySpec(MigrationBehaviour):
    """Which VMs, and how they migrate. What is left out is as the cluster is set up."""

    selectors: Required[MigrationPolicySelectors | None] = None
    """Which VMs."""


class MigrationPolicyStatus(View):
    """Nothing is reported of a policy."""


class MigrationPolicy(KubernetesObject):
    """How some VMs migrate."""

    spec: Required[MigrationPolicySpec] = field(default_factory=MigrationPolicySpec)
    """Which VMs, and how."""
    status: MigrationPolicyStatus = field(default_factory=MigrationPolicyStatus)


class ExperimentalMigrationOptions(View):
    """Settings that may change."""

    compression: str = ""
    downtime_tuning: DowntimeTuningOptions | None = None
    stall_detector: StallDetectorOptions | None = None


class DowntimeTuningOptions(View):
    """How the allowed pause grows."""

    cooldown_seconds: int | None = None
    initial_ms: int | None = None
    start_after_iteration: int | None = None
    steps: int | None = None


class StallDetectorOptions(View):
    """When a migration counts as stuck."""

    completion_timeout_factor: Amount | None = None
    ewma_alpha: Amount | None = None
    patience_window_decay_factor: Amount | None = None
    precopy_possible_factor: Amount | None = None
    search_local_minima: bool | None = None
    stall_margin: int | None = None
    stall_progress_timeout: int | None = None
    switchover_timeout: int | None = None
