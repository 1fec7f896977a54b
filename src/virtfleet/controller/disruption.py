"""The budget that keeps a drain from shutting a guest down whose owner wants it to be moved instead. Pure.

VMs do not move yet. So `LiveMigrate` and `External` hold the drain back, as they do in KubeVirt for a VM that cannot
move, until its owner stops the VM; `LiveMigrateIfPossible` does not, for it is not possible.
"""

from __future__ import annotations

from virtfleet.api import names
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, VMIS, Obj, owner_reference

_HOLDING = ("LiveMigrate", "External")


def budget(vmi: Obj) -> Obj | None:
    """The budget of a VMI's Pod, which goes when the VMI goes; None where a drain may go on."""
    if vmi["spec"].get("evictionStrategy") not in _HOLDING:
        return None
    meta = vmi["metadata"]
    return {
        "apiVersion": POD_DISRUPTION_BUDGETS.api_version,
        "kind": POD_DISRUPTION_BUDGETS.kind,
        "metadata": {
            "name": f"kubevirt-disruption-budget-{meta['uid']}",
            "namespace": meta["namespace"],
            "ownerReferences": [owner_reference(vmi, VMIS)],
        },
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {names.CREATED_BY: meta["uid"]}}},
    }
