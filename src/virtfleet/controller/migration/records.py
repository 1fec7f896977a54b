"""What the controllers keep of migrations and of the policies for them."""

# ruff: noqa: RUF012 (msgspec copies mutable defaults)
from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api.meta import PhaseTransitionTimestamp
from virtfleet.api.migration import MigrationPolicySpec, VirtualMachineInstanceMigrationState
from virtfleet.api.names import FINAL, Phase
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Kept, Record
from virtfleet.kube.resource import MIGRATION_POLICIES, VMI_MIGRATIONS, Obj

UNFINISHED = "unfinished"


class MigrationSpec(Record):
    vmi_name: str = ""
    added_node_selector: dict[str, str] = {}
    priority: str = ""
    send_to: dict[str, Any] | None = None
    receive: dict[str, Any] | None = None


class MigrationStatus(Record):
    phase: str = ""
    conditions: list[dict[str, Any]] = []
    migration_state: VirtualMachineInstanceMigrationState | None = None
    phase_transition_timestamps: list[PhaseTransitionTimestamp] = []


class Migration(Kept):
    """A request to move a VM."""

    resource = VMI_MIGRATIONS
    spec: MigrationSpec = msgspec.field(default_factory=MigrationSpec)
    status: MigrationStatus = msgspec.field(default_factory=MigrationStatus)

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def final(self) -> bool:
        return self.phase in FINAL

    @property
    def begun(self) -> bool:
        """Something has been made for it, as far as its status knows."""
        return self.phase not in ("", Phase.PENDING)

    @property
    def vmi_key(self) -> str:
        return f"{self.namespace}/{self.spec.vmi_name}"

    @property
    def since(self) -> str:
        """When its phase began."""
        entered = [t.phase_transition_timestamp for t in self.status.phase_transition_timestamps[-1:]]
        return entered[0] if entered and entered[0] else self.metadata.creation_timestamp


class Policy(Kept):
    """How some VMs migrate."""

    resource = MIGRATION_POLICIES
    spec: MigrationPolicySpec = msgspec.field(default_factory=MigrationPolicySpec)


decode_migration = msgspec.json.Decoder(Migration).decode
decode_policy = msgspec.json.Decoder(Policy).decode


def migration_of(vmi: Instance, name: str, *, priority: str = "", **metadata: Any) -> Obj:
    """The object of a migration that a controller starts. The name says why, so that no two make one for the same."""
    spec = {"vmiName": vmi.name, **({"priority": priority} if priority else {})}
    return VMI_MIGRATIONS.object({"name": name, "namespace": vmi.namespace, **metadata}, spec=spec)
