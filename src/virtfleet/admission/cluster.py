"""The KubeVirt object as admission sees it: its configuration with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.quantity import Quantity
from virtfleet.pools.launcher import Fleet

_MACHINE_TYPES = {"amd64": "q35", "arm64": "virt", "s390x": "s390-ccw-virtio"}
_EMULATED_MACHINES = {"amd64": ["q35*", "pc-q35*"], "arm64": ["virt*"], "s390x": ["s390-ccw-virtio*"]}
_DEFAULT_CPU_REQUEST = Quantity.parse("100m")
_DEFAULT_QGS_SOCKET = "/var/run/tdx-qgs/qgs.socket"

# Names of the service accounts whose requests are VirtFleet's own.
_COMPONENTS = (
    "kubevirt-apiserver",
    "kubevirt-controller",
    "kubevirt-handler",
    "kubevirt-synchronization-controller",
)


@dataclass(frozen=True)
class Cluster:
    """Read once per version of the KubeVirt object, asked for every request."""

    kubevirt: Mapping[str, Any]

    @cached_property
    def gates(self) -> FeatureGates:
        return FeatureGates.of(self.kubevirt)

    def enabled(self, gate: str) -> bool:
        return self.gates.enabled(gate)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet.of(self.kubevirt, default_image="")

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        return (self.kubevirt.get("spec") or {}).get("configuration") or {}

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        return (self.kubevirt.get("metadata") or {}).get("annotations") or {}

    @cached_property
    def default_architecture(self) -> str:
        return (self.kubevirt.get("status") or {}).get("defaultArchitecture") or "amd64"

    def _architecture(self, architecture: str) -> Mapping[str, Any]:
        name = architecture if architecture in _MACHINE_TYPES else "amd64"
        return (self.configuration.get("architectureConfiguration") or {}).get(name) or {}

    def machine_type(self, architecture: str) -> str:
        chosen = self.configuration.get("machineType") or self._architecture(architecture).get("machineType")
        return chosen or _MACHINE_TYPES.get(architecture, "q35")

    def emulated_machines(self, architecture: str) -> list[str]:
        """Patterns of the machine types that VMIs may ask for."""
        for configured in (self.configuration, self._architecture(architecture)):
            if configured.get("emulatedMachines"):
                return list(configured["emulatedMachines"])
        return _EMULATED_MACHINES.get(architecture, _EMULATED_MACHINES["amd64"])

    @cached_property
    def cpu_model(self) -> str:
        return self.configuration.get("cpuModel") or ""

    @cached_property
    def cpu_request(self) -> Quantity | None:
        """The CPU request that VMIs without one get, where it differs from the built-in one."""
        configured = self.configuration.get("cpuRequest")
        request = Quantity.parse(configured) if configured is not None else _DEFAULT_CPU_REQUEST
        return None if request == _DEFAULT_CPU_REQUEST else request

    @cached_property
    def eviction_strategy(self) -> str:
        return self.configuration.get("evictionStrategy") or "None"

    @cached_property
    def network_interface(self) -> str:
        """How a VMI without networks is connected to the pod network."""
        return (self.configuration.get("network") or {}).get("defaultNetworkInterface") or "bridge"

    @cached_property
    def bridge_on_pod_network(self) -> bool:
        permitted = (self.configuration.get("network") or {}).get("permitBridgeInterfaceOnPodNetwork")
        return permitted is not False

    @cached_property
    def live_update(self) -> bool:
        return (self.configuration.get("vmRolloutStrategy") or "LiveUpdate") == "LiveUpdate"

    @cached_property
    def _live_update(self) -> Mapping[str, Any]:
        return self.configuration.get("liveUpdateConfiguration") or {}

    @property
    def max_sockets(self) -> int:
        return self._live_update.get("maxCpuSockets") or 0

    @cached_property
    def max_guest(self) -> Quantity | None:
        configured = self._live_update.get("maxGuest")
        return None if configured is None else Quantity.parse(configured)

    @property
    def max_hotplug_ratio(self) -> int:
        return self._live_update.get("maxHotplugRatio") or 4

    @cached_property
    def qgs_socket(self) -> str:
        """Socket of the quote generation service for TDX attestation."""
        tdx = (self.configuration.get("confidentialCompute") or {}).get("tdx") or {}
        path = (tdx.get("attestation") or {}).get("qgsSocketPath")
        return _DEFAULT_QGS_SOCKET if path is None else path

    @cached_property
    def permitted_devices(self) -> frozenset[str] | None:
        """Names of the host devices that VMIs may ask for. None: nothing is configured, and nothing checked."""
        permitted = self.configuration.get("permittedHostDevices")
        if permitted is None:
            return None
        lists = (permitted.get(kind) or () for kind in ("pciHostDevices", "mediatedDevices", "usb"))
        return frozenset(device.get("resourceName") or "" for devices in lists for device in devices)

    @cached_property
    def persistent_reservation(self) -> bool:
        enabled = (self.configuration.get("persistentReservationConfiguration") or {}).get("enabled")
        return "PersistentReservation" in self.gates.switched_on if enabled is None else bool(enabled)

    @cached_property
    def service_accounts(self) -> frozenset[str]:
        """User names under which VirtFleet's own components make requests."""
        namespace = (self.kubevirt.get("metadata") or {}).get("namespace") or "kubevirt"
        return frozenset(f"system:serviceaccount:{namespace}:{name}" for name in _COMPONENTS)
