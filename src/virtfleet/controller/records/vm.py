"""Records of VMs and of replica sets."""

from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api import names
from virtfleet.api.vm import VirtualMachineStartFailure, VirtualMachineStateChangeRequest
from virtfleet.controller.records.guest import GuestSpec
from virtfleet.controller.records.instance import Migrated
from virtfleet.controller.records.kept import Record, Whole, whole
from virtfleet.kube.resource import VMI_REPLICA_SETS, VMS


class TemplateAnnotations(Record):
    pci_topology: Any = msgspec.field(default=None, name=names.PCI_TOPOLOGY_VERSION)


class TemplateMeta(Record):
    annotations: TemplateAnnotations | None = None


class Template(Record):
    spec: GuestSpec = msgspec.field(default_factory=GuestSpec)
    metadata: TemplateMeta | None = None

    @property
    def pci_topology(self) -> bool:
        """Whether it says which layout of PCI ports its guest knows."""
        annotations = self.metadata and self.metadata.annotations
        return bool(annotations and annotations.pci_topology)


class VmSpec(Record):
    template: Template = msgspec.field(default_factory=Template)
    run_strategy: str = ""
    running: bool | None = None
    update_volumes_strategy: str = ""
    instancetype: dict[str, Any] | None = None
    preference: dict[str, Any] | None = None
    data_volume_templates: list[dict[str, Any]] = []


class VolumeMigrationState(Record):
    migrated_volumes: list[Migrated] = []


class VolumeUpdateState(Record):
    volume_migration_state: VolumeMigrationState | None = None


class VmStatus(Record):
    printable_status: str = ""
    instancetype_ref: dict[str, Any] | None = None
    preference_ref: dict[str, Any] | None = None
    run_strategy: str = ""
    state_change_requests: list[VirtualMachineStateChangeRequest] = []
    volume_requests: list[dict[str, Any]] = []
    start_failure: VirtualMachineStartFailure | None = None
    volume_update_state: VolumeUpdateState | None = None


class Vm(Whole):
    """A VM."""

    resource = VMS
    spec: VmSpec = msgspec.field(default_factory=VmSpec)
    status: VmStatus = msgspec.field(default_factory=VmStatus)

    @property
    def types(self) -> tuple[dict[str, Any] | None, ...]:
        """What it says of its instance type and preference, and what its status says of them."""
        spec, status = self.spec, self.status
        return spec.instancetype, spec.preference, status.instancetype_ref, status.preference_ref

    @property
    def strategy(self) -> str:
        if self.spec.run_strategy:
            return self.spec.run_strategy
        return "Always" if self.spec.running else "Halted"

    @property
    def copying(self) -> list[Migrated]:
        """Volumes whose data is being copied to the claims of the template, or was when an instance ended."""
        update = self.status.volume_update_state
        state = update.volume_migration_state if update else None
        return state.migrated_volumes if state else []


class ReplicaSet(Whole):
    """A replica set of VMIs."""

    resource = VMI_REPLICA_SETS


def claim_keys(vm: Vm) -> list[str]:
    """An index of VMs: the claims of their volumes."""
    return [f"{vm.namespace}/{claim}" for claim in vm.spec.template.spec.claims.values()]


decode_vm = whole(Vm)
decode_replica_set = whole(ReplicaSet)
