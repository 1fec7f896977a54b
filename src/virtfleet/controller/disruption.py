"""The budget that keeps a drain from shutting a guest down which is to be moved instead. Pure.

virt-api answers evictions of VMs that move, or that somebody else moves; the budget holds them back where virt-api is
not there to be asked, and protects the second Pod while a VM migrates.
"""

from __future__ import annotations

import msgspec

from virtfleet.api import names
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Kept
from virtfleet.installation import Installation
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, VMIS, Obj, owner_reference


class Budget(Kept):
    """A disruption budget, of a VMI or of anything else."""

    resource = POD_DISRUPTION_BUDGETS


decode_budget = msgspec.json.Decoder(Budget).decode


def name(vmi_uid: str) -> str:
    return f"kubevirt-disruption-budget-{vmi_uid}"


def budget(vmi: Instance, cluster: Installation, pods: int = 1) -> Obj | None:
    """The budget of a VMI's Pods, which goes when the VMI goes; None where a drain may go on.

    While a VM migrates it has two Pods, and neither may be evicted.
    """
    strategy = vmi.spec.eviction_strategy or cluster.eviction_strategy
    if strategy not in ("LiveMigrate", "External") and not (strategy == "LiveMigrateIfPossible" and vmi.migratable):
        return None
    owner = {"metadata": {"name": vmi.name, "uid": vmi.uid}}
    meta = {"name": name(vmi.uid), "namespace": vmi.namespace, "ownerReferences": [owner_reference(owner, VMIS)]}
    spec = {"minAvailable": pods, "selector": {"matchLabels": {names.CREATED_BY: vmi.uid}}}
    return POD_DISRUPTION_BUDGETS.object(meta, spec=spec)
