"""Every name that VirtFleet's components share through objects: labels, annotations, finalizers, conditions, phases.

They are KubeVirt's, so that tools and dashboards that people have keep working; those of our own are under
`virtfleet.io` or marked as ours.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "kubevirt.io"
VERSION: Final = "v1"

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # as Kubernetes calls them, by machines' own words

# --- labels
APP_LABEL: Final = "kubevirt.io"
LAUNCHER_APP: Final = "virt-launcher"
HOTPLUG_APP: Final = "hotplug-disk"  # Pods that attach volumes of running VMs
IMPORTER_APP: Final = "virt-importer"  # Pods that fill claims
CREATED_BY: Final = "kubevirt.io/created-by"
VM_NAME: Final = "vm.kubevirt.io/name"
VMI_ID: Final = "vmi.kubevirt.io/id"
NODE_NAME: Final = "kubevirt.io/nodeName"
MIGRATION_UID: Final = "kubevirt.io/migrationJobUID"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"  # a taint that administrators put on a node
MIGRATION_TARGET_NODE: Final = "kubevirt.io/migrationTargetNodeName"
MIGRATION_VMI: Final = "kubevirt.io/vmi-name"
OUTDATED_LAUNCHER_IMAGE: Final = "kubevirt.io/outdatedLauncherImage"
SCHEDULABLE: Final = "kubevirt.io/schedulable"
HANDLER_POOL: Final = "kubevirt.io/handler-pool"  # ours; label and annotation
SERVED_BY: Final = "virtfleet.io/served-by"  # of nodes: whose handler keeps them until the next one is proven there
STAND_IN: Final = "virtfleet.io/stand-in"  # of handler Pods: it serves a node while its DaemonSet's Pod is replaced
IMAGE_VOLUMES: Final = "virtfleet.io/image-volumes"  # of nodes: whether images were seen to be mounted as volumes there
REALTIME: Final = "kubevirt.io/realtime"
SEV: Final = "kubevirt.io/sev"
SEV_ES: Final = "kubevirt.io/sev-es"
SEV_SNP: Final = "kubevirt.io/sev-snp"
TDX: Final = "kubevirt.io/tdx"
SECURE_EXECUTION: Final = "kubevirt.io/s390-pv"
CPU_MANAGER: Final = "kubevirt.io/cpumanager"
DEPRECATED_CPU_MANAGER: Final = "cpumanager"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_OPERATOR: Final = "virt-operator"
MADE_BY: Final = "kubevirt.io/generation"  # of components: the generation of the KubeVirt object that they follow
DEPLOYMENT_ID: Final = "kubevirt.io/install-strategy-identifier"  # of their Pods: `targetDeploymentID` as it was then
PRIORITY_CLASS: Final = "kubevirt-cluster-critical"  # of all components

# Labels of nodes, each a prefix that ends in the name of what the node can do.
NODE_DOMAIN: Final = ".node.kubevirt.io/"
CPU_MODEL: Final = "cpu-model.node.kubevirt.io/"
CPU_MODEL_MIGRATION: Final = "cpu-model-migration.node.kubevirt.io/"
CPU_FEATURE: Final = "cpu-feature.node.kubevirt.io/"
CPU_TIMER: Final = "cpu-timer.node.kubevirt.io/"
CPU_VENDOR: Final = "cpu-vendor.node.kubevirt.io/"
HOST_MODEL_CPU: Final = "host-model-cpu.node.kubevirt.io/"
OBSOLETE_HOST_MODEL: Final = "node-labeller.kubevirt.io/obsolete-host-model"  # whole
HOST_MODEL_REQUIRED_FEATURES: Final = "host-model-required-features.node.kubevirt.io/"
HYPERV: Final = "hyperv.node.kubevirt.io/"
MACHINE_TYPE: Final = "machine-type.node.kubevirt.io/"
HYPERVISOR_WORKS: Final = "hypervisor.node.kubevirt.io/"  # ours: set when the hypervisor really works there

# Labels of nodes that handlers write, by what they found out there; nobody else's begin so.
NODE_FACT_PREFIXES: Final = (
    CPU_MODEL,
    CPU_MODEL_MIGRATION,
    CPU_FEATURE,
    CPU_VENDOR,
    CPU_TIMER,
    HOST_MODEL_CPU,
    HOST_MODEL_REQUIRED_FEATURES,
    HYPERV,
    MACHINE_TYPE,
    HYPERVISOR_WORKS,
)
NODE_FACTS: Final = (REALTIME, SEV, SEV_ES, SEV_SNP, TDX, SECURE_EXECUTION, OBSOLETE_HOST_MODEL)

# Resources that the handler's device plugin offers.
DEVICE_PREFIX: Final = "devices.kubevirt.io/"


# --- annotations
# Of instances: the instance type and the preference of their VM, of its namespace or of the whole cluster.
INSTANCETYPES: Final = ("kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name")
PREFERENCES: Final = ("kubevirt.io/preference-name", "kubevirt.io/cluster-preference-name")
VGA_FOR_EFI: Final = "kubevirt.io/vga-display-efi-x86"  # of the KubeVirt object
DOMAIN: Final = "kubevirt.io/domain"  # label and annotation
ALLOW_POD_BRIDGE_MIGRATION: Final = "kubevirt.io/allow-pod-bridge-network-live-migration"
HANDLER_HEARTBEAT: Final = "kubevirt.io/heartbeat"
IGNITION: Final = "kubevirt.io/ignitiondata"
HOOK_SIDECARS: Final = "hooks.kubevirt.io/hookSidecars"
PLACE_PCI_DEVICES_ON_ROOT_COMPLEX: Final = "kubevirt.io/placePCIDevicesOnRootComplex"
MEMORY_LIMITS_RATIO: Final = "alpha.kubevirt.io/auto-memory-limits-ratio"  # label of namespaces
PCI_TOPOLOGY_VERSION: Final = "kubevirt.io/pci-topology-version"
PCI_INTERFACE_SLOTS: Final = "kubevirt.io/pci-interface-slot-count"
DISABLE_PCI_HOLE64: Final = "kubevirt.io/disablePCIHole64"
MEMFD: Final = "kubevirt.io/memfd"
NON_ROOT: Final = "kubevirt.io/nonroot"
MIGRATION_NAME: Final = "kubevirt.io/migrationJobName"  # of target Pods
STATE_FOR: Final = "persistent-state-for"  # label of the claim that holds what a VM's firmware and TPM remember
STATE_VOLUME: Final = "persistent-state-for-this-vm"  # its name in a VMI's status
STATE_MIGRATION: Final = "kubevirt.io/migrationName"  # label of one that a migration takes the state into
MIGRATION_INTERFACE: Final = "migration0"  # of handlers, on the network that migrations have for themselves
# When the guest ran in a target Pod, for networks that let a VM keep its address.
MIGRATION_TARGET_READY: Final = "kubevirt.io/migration-target-ready-timestamp"
# Of migrations: seconds after which a target Pod is given up that no node takes, or that does not start.
MIGRATION_UNSCHEDULABLE_TIMEOUT: Final = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds"
MIGRATION_PENDING_TIMEOUT: Final = "kubevirt.io/migrationPendingPodTimeoutSeconds"
WORKLOAD_UPDATE: Final = "kubevirt.io/workloadUpdateMigration"  # of migrations: to the launcher image of today
VOLUME_UPDATE: Final = "kubevirt.io/volume-update-migration"  # of migrations that copy disks to other claims
EVACUATION: Final = "kubevirt.io/evacuationMigration"  # of migrations: the node that the VM leaves
EVICTION_SOURCE: Final = "kubevirt.io/eviction-source"  # of VMIs that leave their node: who asked, if not a drain
DESCHEDULER: Final = "descheduler"
# Of launcher Pods, for the descheduler: an eviction begins something that ends later, and whether it has begun.
EVICTED_LATER: Final = "descheduler.alpha.kubernetes.io/request-evict-only"
EVICTION_IN_PROGRESS: Final = "descheduler.alpha.kubernetes.io/eviction-in-progress"
DRAINED: Final = "virtfleet.io/drained"  # of nodes: VMs began to leave it while it was cordoned
LIBVIRT_LOG_FILTERS: Final = "kubevirt.io/libvirt-log-filters"
PAUSE_PROBES: Final = "kubevirt.io/pause-guest-agent-probes"  # "true": pings of the guest's agent all succeed
# Labels of VMIs: what their launchers log.
DEBUG_LOGS: Final = "debugLogs"
LOG_VERBOSITY: Final = "logVerbosity"
FAIL_FAST: Final = "kubevirt.io/func-test-virt-launcher-fail-fast"
FAIL_MIGRATIONS: Final = "kubevirt.io/func-test-force-launcher-migration-failure"
FREE_PAGE_REPORTING_DISABLED: Final = "kubevirt.io/free-page-reporting-disabled"
EMULATOR_THREAD_EVEN_PARITY: Final = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"
QGS_SOCKET_PATH: Final = "kubevirt.io/qgs-socket-path"
VM_GENERATION: Final = "kubevirt.io/vm-generation"
OWNER_VMI_NAME: Final = "kubevirt.io/owner-vmi-name"  # on a Pod that attaches a volume
OWNER_VMI_UID: Final = "kubevirt.io/owner-vmi-uid"
ATTACHED_VOLUME: Final = "virtfleet.io/attached-volume"
ISTIO_INJECT: Final = "sidecar.istio.io/inject"
LAUNCHER_HYPERVISOR: Final = "virtfleet.io/hypervisor"  # of launcher Pods and VMIs: what they were made to run on
HANDLER_VERSION: Final = "virtfleet.io/handler-version"  # of nodes: the version of the handler that serves them
# Of nodes: the versions with which IMAGE_VOLUMES was found out. Without it that label is somebody's word, and stays.
IMAGE_VOLUMES_OF: Final = "virtfleet.io/image-volumes-of"
FORCE_POOL_REMOVAL: Final = "virtfleet.io/force-pool-removal"

# --- variables of components
STAND_IN_VARIABLE: Final = "VIRTFLEET_STAND_IN"  # of handlers: whether it only stands in

# --- conditions of Pods
UNPAUSED: Final = "kubevirt.io/virtual-machine-unpaused"  # of launcher Pods: their readiness gate

# --- finalizers
VMI_FINALIZER: Final = "kubevirt.io/foregroundDeleteVirtualMachine"
VM_FINALIZER: Final = "kubevirt.io/virtualMachineControllerFinalize"
MIGRATION_FINALIZER: Final = "kubevirt.io/migrationJobFinalize"
OPERATOR_FINALIZER: Final = "foregroundDeleteKubeVirt"


class Phase:
    """Phases of a VMI. From Pending a VMI goes on in this order; Succeeded and Failed are final."""

    PENDING: Final = "Pending"
    SCHEDULING: Final = "Scheduling"
    SCHEDULED: Final = "Scheduled"
    RUNNING: Final = "Running"
    SUCCEEDED: Final = "Succeeded"
    FAILED: Final = "Failed"
    UNKNOWN: Final = "Unknown"


class MigrationPhase(Phase):
    """Phases of a migration, which begin as a VMI's do."""

    PREPARING_TARGET: Final = "PreparingTarget"
    TARGET_READY: Final = "TargetReady"


FINAL: Final = (Phase.SUCCEEDED, Phase.FAILED)
"""Phases after which nothing comes: of VMIs, of migrations, and of Pods."""

STUCK: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
)
"""Reasons for which a container waits that somebody has to do something about."""


class VMICondition:
    """Types of a VMI's conditions."""

    READY: Final = "Ready"
    SYNCHRONIZED: Final = "Synchronized"
    PAUSED: Final = "Paused"
    AGENT_CONNECTED: Final = "AgentConnected"
    UNSUPPORTED_AGENT: Final = "AgentVersionNotSupported"
    CREDENTIALS: Final = "AccessCredentialsSynchronized"
    SOFTWARE_EMULATION: Final = "SoftwareEmulation"
    LIVE_MIGRATABLE: Final = "LiveMigratable"
    STORAGE_LIVE_MIGRATABLE: Final = "StorageLiveMigratable"
    VOLUMES_CHANGE: Final = "VolumesChange"
    CPU_CHANGE: Final = "HotVCPUChange"
    MEMORY_CHANGE: Final = "HotMemoryChange"
    MIGRATION_REQUIRED: Final = "MigrationRequired"
    EVICTION_REQUESTED: Final = "EvictionRequested"
    VOLUMES_READY: Final = "DataVolumesReady"


class MigrationCondition:
    """Types of a migration's conditions."""

    ABORT_REQUESTED: Final = "migrationAbortRequested"
    REJECTED_BY_QUOTA: Final = "migrationRejectedByResourceQuota"


class VMCondition:
    """Types of a VM's conditions that are not taken over from its VMI."""

    READY: Final = "Ready"
    FAILURE: Final = "Failure"
    RESTART_REQUIRED: Final = "RestartRequired"
    MANUAL_RECOVERY: Final = "ManualRecoveryRequired"


class NotMigratable:
    """Reasons of the condition LiveMigratable."""

    DISKS: Final = "DisksNotLiveMigratable"
    INTERFACE: Final = "InterfaceNotLiveMigratable"
    VIRTIOFS: Final = "VirtIOFSNotLiveMigratable"
    HOST_DEVICE: Final = "HostDeviceNotLiveMigratable"
    SEV: Final = "SEVNotLiveMigratable"
    SECURE_EXECUTION: Final = "SecureExecutionNotLiveMigratable"
    TDX: Final = "TDXNotLiveMigratable"
    TSC_FREQUENCY: Final = "NoTSCFrequencyNotLiveMigratable"
    HYPERV_PASSTHROUGH: Final = "HypervPassthroughNotLiveMigratable"
    PERSISTENT_RESERVATION: Final = "PersistentReservationNotLiveMigratable"
    OTHER: Final = "NotMigratable"


class PrintableStatus:
    """What `kubectl get vm` shows as STATUS."""

    STOPPED: Final = "Stopped"
    PROVISIONING: Final = "Provisioning"
    STARTING: Final = "Starting"
    RUNNING: Final = "Running"
    PAUSED: Final = "Paused"
    STOPPING: Final = "Stopping"
    TERMINATING: Final = "Terminating"
    CRASH_LOOP: Final = "CrashLoopBackOff"
    MIGRATING: Final = "Migrating"
    UNKNOWN: Final = "Unknown"
    UNSCHEDULABLE: Final = "ErrorUnschedulable"
    ERR_IMAGE_PULL: Final = "ErrImagePull"
    IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
    PVC_NOT_FOUND: Final = "ErrorPvcNotFound"
    WAITING_FOR_VOLUME_BINDING: Final = "WaitingForVolumeBinding"
    DATA_VOLUME_ERROR: Final = "DataVolumeError"


# --- CDI's, by which its clients know how a claim is filled

CDI_GROUP: Final = "cdi.kubevirt.io"
CDI_UPLOADS: Final = f"upload.{CDI_GROUP}"
CDI_DEFINITION: Final = f"cdis.{CDI_GROUP}"  # the definition that comes with CDI and nobody else
UPLOAD_TARGET: Final = f"{CDI_GROUP}/storage.upload.target"
FILLING_PHASE: Final = f"{CDI_GROUP}/storage.pod.phase"  # of the Pod that fills it; Succeeded when the disk is whole
FILLING_READY: Final = f"{CDI_GROUP}/storage.pod.ready"  # whether an upload can begin
FILLED_CLAIM: Final = "virtfleet.io/filled-claim"  # of importers
