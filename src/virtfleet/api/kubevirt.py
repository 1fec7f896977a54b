"""The KubeVirt object: one installation, its settings, and its node pools."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.configuration import KubeVirtConfiguration
from virtfleet.api.meta import Condition, KubernetesObject, LabelSelector, LocalObjectReference, Toleration
from virtfleet.api.view import MapKey, OneOf, Raw, Required, View

LIVE_MIGRATE, EVICT = UPDATE_METHODS = ("LiveMigrate", "Evict")
"""How a running VM may get a new launcher."""


class VirtHandlerPoolSelector(View):
    """VMs that belong to a pool: those that use one of the devices, or have the labels."""

    device_names: list[str] = []
    """Devices in gpus and hostDevices of a VM, any of which makes it belong here."""
    vm_labels: LabelSelector | None = None
    """Labels of VMs."""


class AdditionalVirtHandler(View):
    """Nodes with images of their own; a VM whose node selector covers the pool's belongs here."""

    name: Required[str] = ""
    """Name of the pool; its DaemonSet is virt-handler-<name>."""
    virt_handler_image: str = ""
    """Image of virt-handler on these nodes."""
    virt_launcher_image: str = ""
    """Image of the VMs' launchers on these nodes."""
    node_selector: Required[dict[str, str]] = {}
    """Labels of the nodes."""
    hypervisor: str = ""
    """Hypervisor of VMs that belong to this pool."""
    exclusive: bool | None = None
    """Whether VMs that do not belong to this pool are kept off its nodes."""
    workload_update_strategy: KubeVirtWorkloadUpdateStrategy | None = None
    """How VMs of this pool get new launchers, in place of what the installation says."""


class VirtHandlerPool(AdditionalVirtHandler):
    """Nodes with images of their own, for VMs that the selector matches."""

    selector: Required[VirtHandlerPoolSelector] = field(default_factory=VirtHandlerPoolSelector)
    """VMs that belong to this pool."""


class VirtHandlerPoolStatus(View):
    """State of one pool."""

    name: Required[str] = ""
    """Name of the pool."""
    desired_handlers: int | None = None
    """Nodes that should run its handler."""
    ready_handlers: int | None = None
    """Handlers that work."""
    updated_handlers: int | None = None
    """Handlers of the image that is configured now."""
    versions: list[str] = []
    """Versions that its handlers report."""
    nodes: int | None = None
    """Nodes that belong to the pool."""
    matched_vmis: int | None = field(name="matchedVMIs", default=None)
    """VMs that belong to the pool."""
    outdated_vmis: int | None = field(name="outdatedVMIs", default=None)
    """VMs that run with another launcher image than the pool's."""
    conditions: list[Condition] = []
    """Aspects of its state."""


class KubeVirtSpec(View):
    """What is installed, and how it behaves."""

    configuration: KubeVirtConfiguration = field(default_factory=KubeVirtConfiguration)
    """Behaviour of the cluster's VMs."""
    image_tag: str = ""
    """Version that is installed; the operator's own where empty."""
    image_registry: str = ""
    """Registry of the images."""
    image_pull_policy: Annotated[str, OneOf("Always", "IfNotPresent", "Never")] = ""
    """When images are pulled."""
    image_pull_secrets: list[LocalObjectReference] = []
    """Secrets for the registry."""
    infra: ComponentConfig | None = None
    """Where the control plane runs."""
    workloads: ComponentConfig | None = None
    """Where handlers and VMs run."""
    uninstall_strategy: str = ""
    """What deleting this object does: RemoveWorkloads or BlockUninstallIfWorkloadsExist."""
    workload_update_strategy: KubeVirtWorkloadUpdateStrategy | None = None
    """How running VMs get new launchers."""
    certificate_rotate_strategy: KubeVirtCertificateRotateStrategy | None = None
    """How long certificates live."""
    customize_components: CustomizeComponents | None = None
    """Patches of installed objects."""
    monitor_namespace: str = ""
    """Namespace of the monitoring stack."""
    monitor_account: str = ""
    """Service account of the monitoring stack."""
    service_monitor_namespace: str = ""
    """Namespace for service monitors."""
    product_name: str = ""
    """Value of a label on everything installed."""
    product_version: str = ""
    """Value of a label on everything installed."""
    product_component: str = ""
    """Value of a label on everything installed."""
    synchronization_port: str = ""
    """Port for migrations between clusters."""
    virt_handler_pools: Annotated[list[VirtHandlerPool], MapKey("name")] = []
    """Node pools with images of their own; VMs are matched by device and label."""
    additional_virt_handlers: Annotated[list[AdditionalVirtHandler], MapKey("name")] = []
    """Node pools with images of their own; VMs are matched by their node selector."""


class KubeVirtStatus(View):
    """What is installed."""

    phase: str = ""
    """Deploying, Deployed, Deleting or Deleted."""
    health: str = ""
    """Ours: the conditions in one word. Installing, Healthy, Updating, Degraded, Unavailable, Deleting."""
    conditions: list[Condition] = []
    default_architecture: str = ""
    generations: list[GenerationStatus] = []
    observed_deployment_config: str = ""
    observed_deployment_id: str = field(name="observedDeploymentID", default="")
    observed_generation: int | None = None
    observed_kube_virt_registry: str = ""
    observed_kube_virt_version: str = ""
    operator_version: str = ""
    outdated_virtual_machine_instance_workloads: int | None = None
    synchronization_addresses: list[str] = []
    target_deployment_config: str = ""
    target_deployment_id: str = field(name="targetDeploymentID", default="")
    target_kube_virt_registry: str = ""
    target_kube_virt_version: str = ""
    virt_handler_pools: Annotated[list[VirtHandlerPoolStatus], MapKey("name")] = []
    """State of the node pools."""


class KubeVirt(KubernetesObject):
    """One installation of VirtFleet in a cluster."""

    spec: Required[KubeVirtSpec] = field(default_factory=KubeVirtSpec)
    """What is installed, and how it behaves."""
    status: KubeVirtStatus = field(default_factory=KubeVirtStatus)
    """What is installed."""


class ComponentConfig(View):
    """Number and place of components."""

    node_placement: NodePlacement | None = None
    """Where they may run."""
    replicas: int | None = None
    """How many of each."""


class NodePlacement(View):
    """Where Pods may run."""

    node_selector: dict[str, str] = {}
    """Labels that the node must have."""
    affinity: Raw | None = None
    """Rules that attract Pods to nodes, or keep them away."""
    tolerations: list[Toleration] = []
    """Taints of nodes that are accepted."""


class KubeVirtWorkloadUpdateStrategy(View):
    """How running VMs get new launchers."""

    workload_update_methods: list[str] = []
    """LiveMigrate and Evict, in order of preference."""
    batch_eviction_size: int | None = None
    """VMs that are evicted at one time."""
    batch_eviction_interval: str = ""
    """Time between two batches."""


class KubeVirtCertificateRotateStrategy(View):
    """How long certificates live."""

    self_signed: KubeVirtSelfSignConfiguration | None = None
    """For certificates that the operator signs."""


class KubeVirtSelfSignConfiguration(View):
    """Lifetimes of self-signed certificates."""

    ca: CertConfig | None = None
    """The authority."""
    server: CertConfig | None = None
    """Certificates of servers and clients."""
    ca_overlap_interval: str = ""
    ca_rotate_interval: str = ""
    cert_rotate_interval: str = ""


class CertConfig(View):
    """Lifetime of a certificate."""

    duration: str = ""
    """How long it is valid."""
    renew_before: str = ""
    """How long before the end it is renewed."""


class CustomizeComponents(View):
    """Changes to installed objects."""

    patches: list[CustomizeComponentsPatch] = []
    """Patches of objects."""
    flags: Flags | None = None
    """Additional flags of components."""


class CustomizeComponentsPatch(View):
    """A patch of one object."""

    resource_type: Required[str] = ""
    """Kind of the object."""
    resource_name: Required[str] = ""
    """Name of the object."""
    patch: Required[str] = ""
    """The patch."""
    type: Required[str] = ""
    """json, merge or strategic."""


class Flags(View):
    """Additional flags of components."""

    api: dict[str, str] = {}
    controller: dict[str, str] = {}
    handler: dict[str, str] = {}


class GenerationStatus(View):
    """The generation of an installed object that was last applied."""

    group: Required[str] = ""
    hash: str = ""
    last_generation: Required[int] | None = None
    name: Required[str] = ""
    namespace: str = ""
    resource: Required[str] = ""
