"""What the controllers keep of migrations and of the policies for them."""

# ruff: noqa: RUF012 (msgspec copies mutable defaults)
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from virtfleet.api.meta import PhaseTransitionTimestamp
from virtfleet.api.migration import (
    MigrationConfiguration,
    MigrationPolicySpec,
    VirtualMachineInstanceMigrationState,
)
from virtfleet.api.names import FINAL, Phase
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Kept, Record
from virtfleet.kube.resource import MIGRATION_POLICIES, VMI_MIGRATIONS, Obj

UNFINISHED = "unfinished"
Labels = Mapping[str, str]
# What a migration itself has no use for: limits of the cluster, and what is settled before it begins.
_OF_THE_CLUSTER = (
    "parallelMigrationsPerCluster", "parallelOutboundMigrationsPerNode", "nodeDrainTaintKey", "utilityVolumesTimeout",
)  # fmt: skip


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


# --- how a migration is to go: by the policy that knows most of the VM, else as the cluster is set up


def matching(policies: Iterable[Policy], vmi: Labels, namespace: Labels) -> Policy | None:
    """The policy that names most labels, all of which are there: those of the VMI count more, then the name does."""
    scored = [(*score, policy) for policy in policies if (score := _score(policy.spec, vmi, namespace))]
    best = min(scored, key=lambda s: (-s[0] - s[1], -s[0], s[2].name), default=None)
    return best[2] if best else None


def _score(spec: MigrationPolicySpec, vmi: Labels, namespace: Labels) -> tuple[int, int] | None:
    """How many labels of VMI and namespace a policy names; None where one of them is not there."""
    if spec.selectors is None:
        return None
    asked = spec.selectors.virtual_machine_instance_selector, spec.selectors.namespace_selector
    fits = all(wanted.items() <= there.items() for wanted, there in zip(asked, (vmi, namespace), strict=True))
    return (len(asked[0]), len(asked[1])) if fits else None


def in_force(settings: MigrationConfiguration, policy: Policy | None) -> Obj:
    """`migrationConfiguration` of one migration."""
    configured: Obj = msgspec.to_builtins(settings)
    if policy:
        chosen = msgspec.to_builtins(policy.spec)
        del chosen["selectors"]
        if "allowPostCopy" in chosen:
            configured["allowWorkloadDisruption"] = chosen["allowPostCopy"]
        configured |= chosen
    return {name: value for name, value in configured.items() if name not in _OF_THE_CLUSTER}
