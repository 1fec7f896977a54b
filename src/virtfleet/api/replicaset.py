"""A number of equal, nameless VMs."""

from __future__ import annotations

from msgspec import field

from virtfleet.api.meta import Condition, KubernetesObject, LabelSelector
from virtfleet.api.view import Required, View
from virtfleet.api.vmi import VirtualMachineInstanceTemplateSpec


class VirtualMachineInstanceReplicaSetSpec(View):
    """How many, and what they are."""

    replicas: int | None = None
    """Number of VMs; 1 where not set."""
    selector: Required[LabelSelector] = field(default_factory=LabelSelector)
    """Labels that the VMs have."""
    template: Required[VirtualMachineInstanceTemplateSpec] = field(default_factory=VirtualMachineInstanceTemplateSpec)
    """Pattern of the VMs."""
    paused: bool | None = None
    """Whether nothing is changed for now."""


class VirtualMachineInstanceReplicaSetStatus(View):
    """How many there are."""

    replicas: int | None = None
    """VMs that exist."""
    ready_replicas: int | None = None
    """VMs that are ready."""
    label_selector: str = ""
    """The selector as text, for autoscalers."""
    conditions: list[Condition] = []


class VirtualMachineInstanceReplicaSet(KubernetesObject):
    """A number of equal, nameless VMs."""

    spec: Required[VirtualMachineInstanceReplicaSetSpec] = field(default_factory=VirtualMachineInstanceReplicaSetSpec)
    """How many, and what they are."""
    status: VirtualMachineInstanceReplicaSetStatus = field(default_factory=VirtualMachineInstanceReplicaSetStatus)
    """How many there are."""
