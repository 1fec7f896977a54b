"""How a migration is to go: by the policy that knows most of the VM, else as the cluster is set up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from virtfleet.api.migration import MigrationConfiguration, MigrationPolicySpec
from virtfleet.controller.migration.records import Policy
from virtfleet.kube.resource import Obj

Labels = Mapping[str, str]
# What a migration itself has no use for: limits of the cluster, and what is settled before it begins.
_OF_THE_CLUSTER = (
    "parallelMigrationsPerCluster", "parallelOutboundMigrationsPerNode", "nodeDrainTaintKey", "utilityVolumesTimeout",
)  # fmt: skip


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
