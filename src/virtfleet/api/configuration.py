"""Behaviour of a whole cluster: spec.configuration of the KubeVirt object."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.meta import ContainerResources, LabelSelector
from virtfleet.api.migration import MigrationConfiguration
from virtfleet.api.quantity import Amount
from virtfleet.api.view import Empty, OneOf, Required, View


class DeveloperConfiguration(View):
    """Feature gates and settings for developers."""

    feature_gates: list[str] = []
    """Features that are switched on."""
    disabled_feature_gates: list[str] = []
    """Features that are switched off."""
    use_emulation: bool | None = None
    """Emulate CPUs in software where the hypervisor's device is missing."""
    memory_overcommit: int | None = None
    """Guest memory in percent of what is requested."""
    cpu_allocation_ratio: int | None = None
    """Virtual CPUs for one CPU that is requested; 10 where not set."""
    log_verbosity: LogVerbosity | None = None
    """How much components log."""
    node_selectors: dict[str, str] = {}
    """Labels that nodes with VMs must have."""
    cluster_profiler: bool | None = None
    disk_verification: DiskVerification | None = None
    minimum_cluster_tsc_frequency: int | None = field(name="minimumClusterTSCFrequency", default=None)
    minimum_reserve_pvc_bytes: int | None = field(name="minimumReservePVCBytes", default=None)
    pvc_tolerate_less_space_up_to_percent: int | None = None


class KubeVirtConfiguration(View):
    """Behaviour of the cluster's VMs."""

    developer_configuration: DeveloperConfiguration = field(default_factory=DeveloperConfiguration)
    """Feature gates, log verbosity, emulation."""
    hypervisors: list[HypervisorConfiguration] = []
    """Hypervisors of this cluster; the first one is the default."""
    dashboard: DashboardConfiguration | None = None
    """The fleet in a browser; there where this is set, also to {}."""
    architecture_configuration: ArchConfiguration | None = None
    """Defaults for each architecture."""
    migrations: MigrationConfiguration | None = None
    """Limits and behaviour of live migrations."""
    network: NetworkConfiguration | None = None
    """Defaults and plugins for networks."""
    permitted_host_devices: PermittedHostDevices | None = None
    """Devices of nodes that VMs may use."""
    mediated_devices_configuration: MediatedDevicesConfiguration | None = None
    """Virtual GPUs that are made on nodes."""
    eviction_strategy: str = ""
    """Eviction strategy of VMs that do not choose one."""
    cpu_model: str = ""
    """CPU model of VMs that do not choose one."""
    cpu_request: Amount | None = None
    """CPU that is requested for one virtual CPU of VMs that do not choose."""
    machine_type: str = ""
    """Machine type of VMs that do not choose one."""
    smbios: SMBiosConfiguration | None = None
    """Identity that guests read from SMBIOS."""
    mem_balloon_stats_period: int | None = None
    """Seconds between two readings of the memory balloon; 10 where not set."""
    additional_guest_memory_overhead_ratio: str = ""
    """Factor on the computed memory overhead."""
    live_update_configuration: LiveUpdateConfiguration | None = None
    """Limits for adding CPUs and memory to running VMs."""
    vm_rollout_strategy: str = ""
    """Stage or LiveUpdate: when changes of a VM take effect."""
    default_runtime_class: str = ""
    """Runtime class of launcher Pods."""
    image_pull_policy: Annotated[str, OneOf("Always", "IfNotPresent", "Never")] = ""
    """When images are pulled."""
    obsolete_cpu_models: dict[str, bool] = field(name="obsoleteCPUModels", default_factory=dict)
    """CPU models that nodes do not offer."""
    min_cpu_model: str = field(name="minCPUModel", default="")
    """Oldest CPU model that nodes offer."""
    support_container_resources: list[SupportContainerResources] = []
    """Resources of helper containers."""
    virtual_machine_options: VirtualMachineOptions | None = None
    """Switches for all VMs."""
    virtual_machine_instances_per_node: int | None = None
    """Most VMs on one node; 110 where not set."""
    vm_state_storage_class: str = ""
    """Storage class for TPM and EFI state."""
    ksm_configuration: KSMConfiguration | None = None
    """Nodes on which equal memory pages are merged."""
    tls_configuration: TLSConfiguration | None = None
    """Versions and ciphers of TLS."""
    seccomp_configuration: SeccompConfiguration | None = None
    """System calls that launchers may use."""
    auto_cpu_limit_namespace_label_selector: LabelSelector | None = field(
        name="autoCPULimitNamespaceLabelSelector", default=None
    )
    """Namespaces in which VMs get a CPU limit."""
    instancetype: InstancetypeConfiguration | None = None
    """How instance types are kept."""
    api_configuration: ReloadableComponentConfiguration | None = None
    changed_block_tracking_label_selectors: ChangedBlockTrackingSelectors | None = None
    common_instancetypes_deployment: Switch | None = None
    """Instance types and preferences that come with an installation; there unless switched off."""
    confidential_compute: ConfidentialComputeConfiguration | None = None
    controller_configuration: ReloadableComponentConfiguration | None = None
    emulated_machines: list[str] = []
    handler_configuration: ReloadableComponentConfiguration | None = None
    ovmf_path: str = ""
    persistent_reservation_configuration: Switch | None = None
    role_aggregation_strategy: str = ""
    selinux_launcher_type: str = ""
    supported_guest_agent_versions: list[str] = []
    virt_template_deployment: Switch | None = None
    webhook_configuration: ReloadableComponentConfiguration | None = None


class HypervisorConfiguration(View):
    """A hypervisor of this cluster."""

    name: str = ""
    """Its name, for example qemu-kvm or cloud-hypervisor."""
    virt_launcher_image: str = ""
    """Launcher image for VMs on this hypervisor."""


class DashboardConfiguration(View):
    """How people reach the dashboard."""

    hosts: list[str] = []
    """Names under which browsers come, beside those of its Service; requests under other names are refused."""
    token_header: str = ""
    """Header in which a proxy in front puts each visitor's token for the API server; without it, visitors log in."""


class LogVerbosity(View):
    """How much components log, 0 to 9."""

    node_verbosity: dict[str, int] = {}
    virt_api: int | None = field(name="virtAPI", default=None)
    virt_controller: int | None = None
    virt_handler: int | None = None
    virt_launcher: int | None = None
    virt_operator: int | None = None
    virt_synchronization_controller: int | None = None


class ArchConfiguration(View):
    """Defaults for each architecture."""

    default_architecture: str = ""
    """Architecture of VMs that do not choose one."""
    amd64: ArchSpecificConfiguration | None = None
    arm64: ArchSpecificConfiguration | None = None
    ppc64le: ArchSpecificConfiguration | None = None
    s390x: ArchSpecificConfiguration | None = None


class ArchSpecificConfiguration(View):
    """Defaults for one architecture."""

    machine_type: str = ""
    """Machine type of VMs that do not choose one."""
    emulated_machines: list[str] = []
    """Machine types that are accepted, as patterns."""
    ovmf_path: str = ""
    """Directory of the EFI firmware."""


class NetworkConfiguration(View):
    """Defaults and plugins for networks."""

    default_network_interface: str = ""
    """Binding of VMs that do not choose one: bridge or masquerade."""
    permit_bridge_interface_on_pod_network: bool | None = None
    """Whether bridges on the Pod network are accepted."""
    binding: dict[str, InterfaceBindingPlugin] = {}
    """Plugins by name."""
    permit_slirp_interface: bool | None = None


class InterfaceBindingPlugin(View):
    """A plugin that connects interfaces."""

    domain_attachment_type: str = ""
    """How the domain is attached: tap, or managedTap."""
    sidecar_image: str = ""
    """Image that runs beside the VM."""
    network_attachment_definition: str = ""
    """Attachment that sets the Pod's network up."""
    compute_resource_overhead: ContainerResources | None = None
    downward_api: str = field(name="downwardAPI", default="")
    migration: InterfaceBindingMigration | None = None


class PermittedHostDevices(View):
    """Devices of nodes that VMs may use."""

    pci_host_devices: list[PciHostDevice] = []
    """PCI devices."""
    mediated_devices: list[MediatedHostDevice] = []
    """Mediated devices."""
    usb: list[USBHostDevice] = []
    """USB devices."""


class OfferedDevice(View):
    """A device of nodes."""

    resource_name: Required[str] = ""
    """Resource under which it is offered."""
    external_resource_provider: bool | None = None
    """Whether another device plugin offers it."""


class PciHostDevice(OfferedDevice):
    """A PCI device."""

    pci_vendor_selector: Required[str] = ""
    """Vendor and product, for example 10DE:1EB8."""


class MediatedHostDevice(OfferedDevice):
    """A mediated device."""

    mdev_name_selector: Required[str] = ""
    """Name of its type, for example GRID T4-1Q."""


class USBHostDevice(OfferedDevice):
    """USB devices that are assigned together."""

    selectors: list[USBSelector] = []
    """The devices."""


class USBSelector(View):
    """A USB device."""

    product: Required[str] = ""
    vendor: Required[str] = ""


class MediatedDevicesConfiguration(View):
    """Mediated devices that are made on nodes."""

    enabled: bool | None = None
    mediated_device_types: list[str] = []
    mediated_devices_types: list[str] = []
    node_mediated_device_types: list[NodeMediatedDeviceTypesConfig] = []


class NodeMediatedDeviceTypesConfig(View):
    """Mediated devices for some of the nodes."""

    mediated_device_types: list[str] = []
    mediated_devices_types: list[str] = []
    node_selector: Required[dict[str, str]] = {}


class SMBiosConfiguration(View):
    """Identity that guests read from SMBIOS."""

    family: str = ""
    manufacturer: str = ""
    product: str = ""
    sku: str = ""
    version: str = ""


class TLSConfiguration(View):
    """Versions and ciphers of TLS."""

    ciphers: list[str] = []
    min_tls_version: str = field(name="minTLSVersion", default="")


class VirtualMachineOptions(View):
    """Switches for all VMs."""

    disable_free_page_reporting: Empty | None = None
    disable_serial_console_log: Empty | None = None


class LiveUpdateConfiguration(View):
    """Limits for adding CPUs and memory to running VMs."""

    max_hotplug_ratio: int | None = None
    """Largest size as a multiple of the size at boot; 4 where not set."""
    max_cpu_sockets: int | None = None
    """Most sockets."""
    max_guest: Amount | None = None
    """Most memory."""


class SupportContainerResources(View):
    """Resources of helper containers."""

    resources: Required[ContainerResources] | None = None
    type: Required[str] = ""


class DiskVerification(View):
    """Limits while disk images are inspected."""

    memory_limit: Required[Amount] | None = None


class ReloadableComponentConfiguration(View):
    """Settings that a component takes over while it runs."""

    rest_client: RESTClientConfiguration | None = None


class RESTClientConfiguration(View):
    """How a component talks to the API server."""

    rate_limiter: RateLimiter | None = None


class RateLimiter(View):
    """Limits on requests."""

    token_bucket_rate_limiter: TokenBucketRateLimiter | None = None


class TokenBucketRateLimiter(View):
    """Requests per second, and how many at once."""

    burst: Required[int] | None = None
    qps: Required[float] | None = None


class SeccompConfiguration(View):
    """System calls that launchers may use."""

    virtual_machine_instance_profile: VirtualMachineInstanceProfile | None = None


class VirtualMachineInstanceProfile(View):
    """The profile of launchers."""

    custom_profile: CustomProfile | None = None


class CustomProfile(View):
    """A profile on the node, or the runtime's default."""

    localhost_profile: str = ""
    runtime_default_profile: bool | None = None


class ChangedBlockTrackingSelectors(View):
    """VMs whose changed blocks are recorded."""

    namespace_label_selector: LabelSelector | None = None
    virtual_machine_label_selector: LabelSelector | None = None


class KSMConfiguration(View):
    """Nodes on which equal memory pages are merged."""

    node_label_selector: LabelSelector | None = None


class InstancetypeConfiguration(View):
    """How instance types are kept."""

    reference_policy: Annotated[str, OneOf("reference", "expand", "expandAll")] = ""
    """Whether VMs keep a reference to their instance type, or take over what it says and name none."""


class Switch(View):
    """Whether something is installed or switched on."""

    enabled: bool | None = None


class ConfidentialComputeConfiguration(View):
    """Confidential computing."""

    tdx: TDXConfiguration | None = None


class TDXConfiguration(View):
    """Intel TDX."""

    attestation: TDXAttestationConfiguration | None = None


class TDXAttestationConfiguration(View):
    """Attestation with Intel TDX."""

    enforced: bool | None = None
    qgs_socket_path: str = ""


class InterfaceBindingMigration(View):
    """How a plugin's interfaces move."""

    method: str = ""
