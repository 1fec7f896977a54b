"""One installation: the KubeVirt object, with every default for what it leaves open. Pure.

All components ask this one reading, so that a setting means the same to each of them. It is made once per version of
the object, and what is asked of it is worked out then and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any

import msgspec
import orjson

import virtfleet
from virtfleet.api import names, times
from virtfleet.api.configuration import (
    ArchSpecificConfiguration,
    KubeVirtConfiguration,
    LogVerbosity,
    NetworkConfiguration,
    SMBiosConfiguration,
)
from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.meta import ContainerResources
from virtfleet.api.migration import MigrationConfiguration
from virtfleet.api.quantity import Quantity
from virtfleet.api.view import read
from virtfleet.domain.context import Context, Smbios
from virtfleet.hypervisors import registry
from virtfleet.pools.launcher import Fleet
from virtfleet.pools.model import pools_of

VMS_PER_NODE = 110
WAIT_FOR_VMS = "BlockUninstallIfWorkloadsExist"
CERTIFICATES_LIVE = {"ca": timedelta(days=7), "server": timedelta(days=1)}
_EARLY = 5  # certificates are renewed when one part in so many of their life is left
_NAMESPACE = "kubevirt"
_REGISTRY = "virtfleet"
_REPLICAS = 2
_VERBOSITY = 2
_ARCHITECTURE = "amd64"
_MACHINE_TYPES = {"amd64": "q35", "arm64": "virt", "s390x": "s390-ccw-virtio"}
_EMULATED_MACHINES = {"amd64": ["q35*", "pc-q35*"], "arm64": ["virt*"], "s390x": ["s390-ccw-virtio*"]}
_CPU_REQUEST = Quantity.parse("100m")
_CPU_RATIO = 10
_MEMORY_PERCENT = 100
_HOTPLUG_RATIO = 4
_QGS_SOCKET = "/var/run/tdx-qgs/qgs.socket"
_DOMAIN = Context()
_MIGRATIONS = MigrationConfiguration(
    parallel_migrations_per_cluster=5,
    parallel_outbound_migrations_per_node=2,
    bandwidth_per_migration="0",
    completion_timeout_per_gi_b=150,
    progress_timeout=150,
    allow_auto_converge=False,
    allow_post_copy=False,
    unsafe_migration_override=False,
    disable_tls=False,
    node_drain_taint_key="kubevirt.io/drain",
)

_FIRMWARE_SPEAKS = 5  # verbosity of launchers above which the firmware's messages are kept too

# Names of the service accounts whose requests are VirtFleet's own.
_COMPONENTS = ("kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler", "kubevirt-synchronization-controller")


@dataclass(frozen=True)
class Installation:
    """What is read from the KubeVirt object; an empty one has all defaults."""

    kubevirt: dict[str, Any]

    @staticmethod
    def decode(data: bytes) -> Installation:
        """From the object's JSON, as caches have it."""
        return Installation(orjson.loads(data))

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        return self.kubevirt.get("spec") or {}

    @cached_property
    def configuration(self) -> KubeVirtConfiguration:
        return read(KubeVirtConfiguration, self.spec.get("configuration") or {})

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        return (self.kubevirt.get("metadata") or {}).get("annotations") or {}

    @property
    def uninstalling(self) -> bool:
        return "deletionTimestamp" in (self.kubevirt.get("metadata") or {})

    @property
    def settled(self) -> bool:
        """Whether all that the object says is in force, by the word of an operator that reads it as we do."""
        status = self.kubevirt.get("status") or {}
        seen = [status.get(f"observed{what}") for what in ("DeploymentConfig", "KubeVirtVersion", "KubeVirtRegistry")]
        generation = (self.kubevirt.get("metadata") or {}).get("generation")
        return (
            seen == [status.get("targetDeploymentConfig"), self.tag, self.registry]
            and status.get("observedGeneration") == generation
            and status.get("phase") == "Deployed"
        )

    @cached_property
    def gates(self) -> FeatureGates:
        return FeatureGates.of(self.kubevirt)

    def enabled(self, gate: str) -> bool:
        return self.gates.enabled(gate)

    @property
    def plugs_by_template(self) -> bool:
        """Whether volumes are plugged by what a VM's template says, as KubeVirt decides it."""
        return self.enabled("DeclarativeHotplugVolumes") and not self.enabled("HotplugVolumes")

    # -- What is installed

    @cached_property
    def namespace(self) -> str:
        return str((self.kubevirt.get("metadata") or {}).get("namespace") or _NAMESPACE)

    @cached_property
    def service_accounts(self) -> frozenset[str]:
        """User names under which VirtFleet's own components make requests."""
        return frozenset(f"system:serviceaccount:{self.namespace}:{name}" for name in _COMPONENTS)

    @property
    def registry(self) -> str:
        return self.spec.get("imageRegistry") or _REGISTRY

    @property
    def tag(self) -> str:
        return self.spec.get("imageTag") or virtfleet.__version__

    def image(self, component: str) -> str:
        """The image of `virt-operator`, `virt-launcher` and so on."""
        return f"{self.registry}/{component}:{self.tag}"

    @property
    def pull_policy(self) -> str:
        return self.spec.get("imagePullPolicy") or "IfNotPresent"

    @property
    def pull_secrets(self) -> list[str]:
        return [secret["name"] for secret in self.spec.get("imagePullSecrets") or () if secret.get("name")]

    def pulling(self) -> dict[str, Any]:
        """What Pods say of their images beside their names."""
        return {"imagePullSecrets": [{"name": name} for name in self.pull_secrets]} if self.pull_secrets else {}

    @property
    def replicas(self) -> int:
        return (self.spec.get("infra") or {}).get("replicas") or _REPLICAS

    def placement(self, kind: str) -> Mapping[str, Any]:
        """`nodePlacement` of `infra` or `workloads`."""
        return (self.spec.get(kind) or {}).get("nodePlacement") or {}

    def flags(self, component: str) -> list[str]:
        """Flags of a component (api, controller or handler) that the administrator added."""
        flags = ((self.spec.get("customizeComponents") or {}).get("flags") or {}).get(component) or {}
        return [f"--{name}={value}" if value else f"--{name}" for name, value in sorted(flags.items())]

    def verbosity(self, component: str) -> int:
        """How much a component (virt_api, virt_launcher and so on) logs."""
        levels = self.configuration.developer_configuration.log_verbosity or LogVerbosity()
        return getattr(levels, component) or _VERBOSITY

    @property
    def uninstalled_with_vms(self) -> bool:
        """Whether deleting the object takes its VMs away, too; else it waits for their end."""
        return self.spec.get("uninstallStrategy") != WAIT_FOR_VMS

    @cached_property
    def labels(self) -> dict[str, str]:
        """What everything that is installed has in common."""
        return {
            names.MANAGED_BY: names.MANAGED_BY_OPERATOR,
            "app.kubernetes.io/component": self.spec.get("productComponent") or "kubevirt",
            "app.kubernetes.io/part-of": self.spec.get("productName") or "virtfleet",
            "app.kubernetes.io/version": self.spec.get("productVersion") or virtfleet.__version__,
        }

    def metadata(
        self, name: str, labels: Mapping[str, str] | None = None, *, namespaced: bool = True
    ) -> dict[str, Any]:
        """Of an object that is installed."""
        metadata: dict[str, Any] = {"name": name, "labels": {names.APP_LABEL: "", **self.labels, **(labels or {})}}
        if namespaced:
            metadata["namespace"] = self.namespace
        return metadata

    def lifespan(self, kind: str) -> tuple[timedelta, timedelta]:
        """How long certificates of the authority (ca) or of components (server) live; when they are renewed."""
        strategy = (self.spec.get("certificateRotateStrategy") or {}).get("selfSigned") or {}
        settings = strategy.get(kind) or {}
        old_name = {"ca": "caRotateInterval", "server": "certRotateInterval"}[kind]
        lifetime = _time(settings.get("duration") or strategy.get(old_name)) or CERTIFICATES_LIVE[kind]
        overlap = strategy.get("caOverlapInterval") if kind == "ca" else None
        return lifetime, _time(settings.get("renewBefore") or overlap) or lifetime / _EARLY

    # -- Pools and hypervisors

    @cached_property
    def fleet(self) -> Fleet:
        listed = [(registry.canonical(h.name), h.virt_launcher_image) for h in self.configuration.hypervisors]
        default = listed[0][0] if listed else ""
        return Fleet(pools_of(self.kubevirt), self.image("virt-launcher"), default, dict(listed))

    @property
    def vms_per_node(self) -> int:
        return self.configuration.virtual_machine_instances_per_node or VMS_PER_NODE

    @property
    def emulation(self) -> bool:
        """Whether VMs may run without the hypervisor's device."""
        return bool(self.configuration.developer_configuration.use_emulation)

    # -- What VMs get that do not choose

    @cached_property
    def known_architecture(self) -> str:
        """What the administrator says; else what was found first, whoever leads now: VMs are given it for good."""
        by_architecture = self.configuration.architecture_configuration
        asked = by_architecture.default_architecture if by_architecture else ""
        return asked or (self.kubevirt.get("status") or {}).get("defaultArchitecture") or ""

    @property
    def default_architecture(self) -> str:
        return self.known_architecture or _ARCHITECTURE

    def _of_architecture(self, architecture: str) -> ArchSpecificConfiguration:
        configured = getattr(self.configuration.architecture_configuration, architecture or _ARCHITECTURE, None)
        return configured if isinstance(configured, ArchSpecificConfiguration) else ArchSpecificConfiguration()

    def machine_type(self, architecture: str) -> str:
        name = architecture if architecture in _MACHINE_TYPES else _ARCHITECTURE
        return self.configuration.machine_type or self._of_architecture(name).machine_type or _MACHINE_TYPES[name]

    def emulated_machines(self, architecture: str) -> list[str]:
        """Patterns of the machine types that VMIs may ask for."""
        name = architecture if architecture in _MACHINE_TYPES else _ARCHITECTURE
        configured = self.configuration.emulated_machines or self._of_architecture(name).emulated_machines
        return configured or _EMULATED_MACHINES[name]

    @property
    def cpu_model(self) -> str:
        return self.configuration.cpu_model or "host-model"

    @cached_property
    def cpu_request(self) -> Quantity | None:
        """The CPU request that VMIs without one get, where it differs from the built-in one."""
        configured = self.configuration.cpu_request
        request = _CPU_REQUEST if configured is None else Quantity.parse(configured)
        return None if request == _CPU_REQUEST else request

    @property
    def eviction_strategy(self) -> str:
        return self.configuration.eviction_strategy or "None"

    @cached_property
    def _network(self) -> NetworkConfiguration:
        return self.configuration.network or NetworkConfiguration()

    @property
    def network_interface(self) -> str:
        """How a VMI without networks is connected to the pod network."""
        return self._network.default_network_interface or "bridge"

    @cached_property
    def qgs_socket(self) -> str:
        """Socket of the quote generation service for TDX attestation."""
        # An empty path means none; the view cannot tell it from one that is not given.
        compute = (self.spec.get("configuration") or {}).get("confidentialCompute") or {}
        path = ((compute.get("tdx") or {}).get("attestation") or {}).get("qgsSocketPath")
        return _QGS_SOCKET if path is None else path

    # -- What VMs may do

    @property
    def bridge_on_pod_network(self) -> bool:
        return self._network.permit_bridge_interface_on_pod_network is not False

    @property
    def reference_policy(self) -> str:
        """Whether VMs keep a reference to their instance type, or take over what it says: `expand` or `expandAll`."""
        configured = self.configuration.instancetype
        return (configured.reference_policy if configured else "") or "reference"

    @property
    def common_instancetypes(self) -> bool:
        """Whether there are the instance types and preferences that come with an installation."""
        configured = self.configuration.common_instancetypes_deployment
        return configured is None or configured.enabled is not False

    @property
    def live_update(self) -> bool:
        return (self.configuration.vm_rollout_strategy or "LiveUpdate") == "LiveUpdate"

    @property
    def max_sockets(self) -> int:
        limits = self.configuration.live_update_configuration
        return (limits and limits.max_cpu_sockets) or 0

    @cached_property
    def max_guest(self) -> Quantity | None:
        limits = self.configuration.live_update_configuration
        return Quantity.parse(limits.max_guest) if limits and limits.max_guest is not None else None

    @property
    def max_hotplug_ratio(self) -> int:
        limits = self.configuration.live_update_configuration
        return (limits and limits.max_hotplug_ratio) or _HOTPLUG_RATIO

    @cached_property
    def permitted_devices(self) -> frozenset[str] | None:
        """Names of the host devices that VMIs may ask for. None: nothing is configured, and nothing checked."""
        permitted = self.configuration.permitted_host_devices
        if permitted is None:
            return None
        lists = (permitted.pci_host_devices, permitted.mediated_devices, permitted.usb)
        return frozenset(device.resource_name for devices in lists for device in devices)

    @cached_property
    def persistent_reservation(self) -> bool:
        configured = self.configuration.persistent_reservation_configuration
        if configured is None or configured.enabled is None:
            return "PersistentReservation" in self.gates.switched_on
        return configured.enabled

    # -- Launcher Pods

    def pulled(self, image: str) -> dict[str, str]:
        """What a container of a launcher Pod, or of one that helps it, says of its image."""
        policy = self.configuration.image_pull_policy or self.spec.get("imagePullPolicy")
        return {"image": image, **({"imagePullPolicy": policy} if policy else {})}

    @property
    def node_selector(self) -> Mapping[str, str]:
        """Labels that nodes with VMs must have."""
        return self.configuration.developer_configuration.node_selectors

    @property
    def memory_overcommit(self) -> int:
        """Guest memory in percent of what is requested."""
        return self.configuration.developer_configuration.memory_overcommit or _MEMORY_PERCENT

    @property
    def cpu_ratio(self) -> int:
        """Virtual CPUs for one CPU that is requested."""
        return self.configuration.developer_configuration.cpu_allocation_ratio or _CPU_RATIO

    @cached_property
    def overhead_ratio(self) -> Fraction:
        return Fraction(self.configuration.additional_guest_memory_overhead_ratio or 1)

    @cached_property
    def seccomp(self) -> dict[str, str]:
        configured = self.configuration.seccomp_configuration
        profile = configured.virtual_machine_instance_profile if configured else None
        custom = profile.custom_profile.localhost_profile if profile and profile.custom_profile else ""
        return {"type": "Localhost", "localhostProfile": custom} if custom else {"type": "RuntimeDefault"}

    def support_resources(self, kind: str) -> dict[str, dict[str, str]]:
        """What an administrator chose for containers beside launchers of a kind: their requests and limits."""
        chosen = (each.resources for each in self.configuration.support_container_resources if each.type == kind)
        resources = next(filter(None, chosen), None) or ContainerResources()
        amounts = {"requests": resources.requests, "limits": resources.limits}
        return {what: {name: str(Quantity.parse(a)) for name, a in each.items()} for what, each in amounts.items()}

    # -- Migrations

    @cached_property
    def migrations(self) -> MigrationConfiguration:
        """Limits and behaviour of migrations, with every default."""
        wanted = self.configuration.migrations or MigrationConfiguration()
        chosen = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value not in (None, "")}
        settings = msgspec.structs.replace(_MIGRATIONS, **chosen)
        if settings.allow_workload_disruption is None:
            settings.allow_workload_disruption = settings.allow_post_copy
        return settings

    # -- Domains

    @property
    def serial_console_log(self) -> bool:
        """Whether serial consoles are logged where a VMI does not say."""
        options = self.configuration.virtual_machine_options
        return not (options and options.disable_serial_console_log)

    def context(self, architecture: str) -> Context:
        """What the domains of an architecture take from here; the facts of a node are added where they are known."""
        configuration = self.configuration
        options = configuration.virtual_machine_options
        period = configuration.mem_balloon_stats_period
        return Context(
            smbios=self._smbios,
            balloon_period=_DOMAIN.balloon_period if period is None else period,
            free_page_reporting=not (options and options.disable_free_page_reporting),
            serial_console_log=self.serial_console_log,
            bochs_for_efi=names.VGA_FOR_EFI not in self.annotations,
            firmware_autoselection=self.enabled("FirmwareAutoSelection"),
            firmware_dir=self._of_architecture(architecture).ovmf_path or configuration.ovmf_path,
            attachments={name: plugin.domain_attachment_type for name, plugin in self._network.binding.items()},
            verbose=self.verbosity("virt_launcher") > _FIRMWARE_SPEAKS,
        )

    @cached_property
    def _smbios(self) -> Smbios:
        said = msgspec.structs.asdict(self.configuration.smbios or SMBiosConfiguration())
        return Smbios(**{name: value for name, value in said.items() if value})


def _time(text: str | None) -> timedelta | None:
    seconds = times.duration(text) if text else None
    return timedelta(seconds=seconds) if seconds else None


def in_force(installations: Iterable[Installation]) -> Installation:
    """The installation that counts, of those that are known; before one is, all defaults."""
    return next(iter(installations), Installation({}))


def version_of(installations: Iterable[Installation]) -> str:
    """Which version of the KubeVirt object is known, as the API server counts them; empty: none yet."""
    return next((str(each.kubevirt["metadata"]["resourceVersion"]) for each in installations), "")
