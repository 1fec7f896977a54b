"""A virtual machine instance: one running VM.

Its spec is what users write, here and in the templates of the kinds that make instances.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.disks import Volume
from virtfleet.api.domainspec import DomainSpec
from virtfleet.api.meta import KubernetesObject, ObjectMeta, Toleration
from virtfleet.api.networks import Network
from virtfleet.api.probes import Probe
from virtfleet.api.view import Empty, MapKey, OneOf, Raw, Required, View
from virtfleet.api.vmistatus import VirtualMachineInstanceStatus


class VirtualMachineInstanceSpec(View):
    """What runs: virtual hardware, volumes, networks, and where it may run."""

    domain: Required[DomainSpec] = field(default_factory=DomainSpec)
    """Virtual hardware."""
    volumes: list[Volume] = []
    """Data for disks and file systems."""
    networks: list[Network] = []
    """Networks for interfaces."""
    architecture: str = ""
    """amd64, arm64 or s390x."""
    node_selector: dict[str, str] = {}
    """Labels that the node must have."""
    affinity: Raw | None = None
    """Rules that attract the VM to nodes and VMs, or keep it away."""
    tolerations: list[Toleration] = []
    """Taints of nodes that are accepted."""
    topology_spread_constraints: list[Raw] = []
    """How VMs spread over zones and nodes."""
    scheduler_name: str = ""
    """Scheduler that places the VM."""
    priority_class_name: str = ""
    """Importance in times of scarcity."""
    eviction_strategy: str = ""
    """What a drain of the node does: LiveMigrate, LiveMigrateIfPossible, External or None."""
    start_strategy: str = ""
    """Paused starts the VM paused."""
    termination_grace_period_seconds: int | None = None
    """Time to shut down before the VM is killed."""
    hostname: str = ""
    """Host name; the VM's name where empty."""
    subdomain: str = ""
    """Gives the VM a name in the cluster's DNS."""
    dns_policy: Annotated[str, OneOf("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")] = ""
    """Where name servers come from."""
    dns_config: Raw | None = None
    """Name servers and search domains."""
    liveness_probe: Probe | None = None
    """A check whose failure ends the VM."""
    readiness_probe: Probe | None = None
    """A check that decides whether the VM is Ready."""
    access_credentials: list[AccessCredential] = []
    """SSH keys and passwords that are put into the guest."""
    resource_claims: Annotated[list[VirtualMachineInstanceResourceClaim], MapKey("name")] = []
    """Devices that are allocated for the VM."""
    service_account_name: str = ""
    """Service account of the VM's Pod."""
    utility_volumes: Annotated[list[UtilityVolume], MapKey("name")] = []
    """Claims attached for other ends than disks."""
    hypervisor: str = ""
    """Hypervisor that runs the VM, such as qemu-kvm or lxc; the pool's or the cluster's where empty."""


class VirtualMachineInstance(KubernetesObject):
    """A running virtual machine."""

    spec: Required[VirtualMachineInstanceSpec] = field(default_factory=VirtualMachineInstanceSpec)
    """What runs."""
    status: VirtualMachineInstanceStatus = field(default_factory=VirtualMachineInstanceStatus)
    """What is known of the VM."""


class VirtualMachineInstanceTemplateSpec(View):
    """A pattern for instances."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    """Labels and annotations of the instances."""
    spec: VirtualMachineInstanceSpec = field(default_factory=VirtualMachineInstanceSpec)
    """Spec of the instances."""


class VirtualMachineInstanceResourceClaim(View):
    """Devices that are allocated for the VM."""

    name: Required[str] = ""
    """Name within the VM."""
    resource_claim_name: str = ""
    """An existing ResourceClaim."""
    resource_claim_template_name: str = ""
    """A ResourceClaimTemplate; each VM gets its own claim."""


class UtilityVolume(View):
    """A claim attached for other ends than a disk."""

    name: Required[str] = ""
    """Name within the VM."""
    claim_name: Required[str] = ""
    """Name of the claim."""
    read_only: bool | None = None
    """Whether it is attached for reading only."""
    type: str = ""
    """What it is for."""


class AccessCredential(View):
    """A credential that is put into the guest; one kind is set."""

    ssh_public_key: SSHPublicKeyAccessCredential | None = None
    """SSH keys."""
    user_password: UserPasswordAccessCredential | None = None
    """Passwords."""


class SSHPublicKeyAccessCredential(View):
    """SSH keys for users of the guest."""

    source: Required[AccessCredentialSource] | None = None
    """Where the keys are."""
    propagation_method: Required[SSHPublicKeyAccessCredentialPropagationMethod] | None = None
    """How they reach the guest."""


class SSHPublicKeyAccessCredentialPropagationMethod(View):
    """How keys reach the guest."""

    qemu_guest_agent: QemuGuestAgentSSHPublicKeyAccessCredentialPropagation | None = None
    """By the guest agent, while the VM runs."""
    config_drive: Empty | None = None
    """By cloud-init's config drive, at boot."""
    no_cloud: Empty | None = None
    """By cloud-init's NoCloud disk, at boot."""


class QemuGuestAgentSSHPublicKeyAccessCredentialPropagation(View):
    """By the guest agent."""

    users: Required[list[str]] = []
    """Users of the guest that get the keys."""


class UserPasswordAccessCredential(View):
    """Passwords for users of the guest."""

    source: Required[AccessCredentialSource] | None = None
    """Where the passwords are."""
    propagation_method: Required[UserPasswordAccessCredentialPropagationMethod] | None = None
    """How they reach the guest."""


class UserPasswordAccessCredentialPropagationMethod(View):
    """How passwords reach the guest."""

    qemu_guest_agent: Empty | None = None
    """By the guest agent, while the VM runs."""


class AccessCredentialSource(View):
    """Where a credential is."""

    secret: AccessCredentialSecretSource | None = None
    """In a Secret."""


class AccessCredentialSecretSource(View):
    """A Secret in the same namespace."""

    secret_name: Required[str] = ""
    """Name of the Secret."""
