"""Feature gates: which there are, and which a KubeVirt object switches on.

KubeVirt's own gates keep their names and their meaning: a generally available feature is always on, a beta feature
is on unless `disabledFeatureGates` names it, any other is on when `featureGates` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALPHA, BETA, GA, DEPRECATED, DISCONTINUED = "alpha", "beta", "generally available", "deprecated", "discontinued"

_BY_STATE = {
    ALPHA: """
        AdditionalVirtHandlers VirtHandlerPools
        CPUManager ExperimentalIgnitionSupport HypervStrictCheck Sidecar HostDevices HostDisk DownwardMetrics Root
        WorkloadEncryptionTDX VSOCK AlignCPUs EnableVirtioFsStorageVolumes PCINUMAAwareTopology NetworkDevicesWithDRA
        ObjectGraph UtilityVolumes ConfigurableHypervisor IncrementalBackup ContainerPathVolumes ReservedOverheadMemlock
        VGPULiveMigration VMStatsCollector OCIExport Plugins GraceIOVirtualization IOMMUFD FirmwareAutoSelection
        MigrationStallDetection MigrationDowntimeTuning CrossArchitectureVirtualization PortRangesSpec
    """,
    BETA: """
        ImageVolume Snapshot WorkloadEncryptionSEV KubevirtSeccompProfile NodeRestriction GPUsWithDRA HostDevicesWithDRA
        DecentralizedLiveMigration DeclarativeHotplugVolumes PasstBinding PodSecondaryInterfaceNamingUpgrade
        ExternalNetResourceInjection RebootPolicy Template OptOutRoleAggregation
        InPlaceResize
    """,
    GA: """
        LiveMigration SRIOVLiveMigration NonRoot PSA CPUNodeDiscovery NUMA CommonInstancetypesDeploymentGate GPU
        HotplugNICs BochsDisplayForEFIGuests VMLiveUpdateFeatures NetworkBindingPlugins DynamicPodInterfaceNaming
        VolumesUpdateStrategy
        VolumeMigration DisableCustomSELinuxPolicy AutoResourceLimitsGate ClusterProfiler VMPersistentState VMExport
        PersistentReservation InstancetypeReferencePolicy EnableVirtioFsConfigVolumes ExpandDisks PanicDevices
        LiveUpdateNADRef VideoConfig SecureExecution MigrationPriorityQueue VmiMemoryOverheadReport
        LibvirtHooksServerAndClient
    """,
    DEPRECATED: "DockerSELinuxMCSWorkaround MultiArchitecture DisableMDEVConfiguration HotplugVolumes",
    DISCONTINUED: "ExperimentalVirtiofsSupport Passt Macvtap PasstIPStackMigration",
}

STATES: dict[str, str] = {name: state for state, names in _BY_STATE.items() for name in names.split()}
"""Every gate and its state."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The gates of one KubeVirt object."""

    switched_on: frozenset[str] = frozenset()
    switched_off: frozenset[str] = frozenset()

    @staticmethod
    def of(kubevirt: Mapping[str, Any]) -> FeatureGates:
        configuration = (kubevirt.get("spec") or {}).get("configuration") or {}
        developer = configuration.get("developerConfiguration") or {}
        return FeatureGates(
            frozenset(developer.get("featureGates") or ()), frozenset(developer.get("disabledFeatureGates") or ())
        )

    def enabled(self, gate: str) -> bool:
        state = STATES[gate]
        if state == GA or gate in self.switched_on:
            return True
        return state == BETA and gate not in self.switched_off
