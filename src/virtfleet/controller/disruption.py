"""The budget that keeps a drain from shutting a guest down whose owner wants it to be moved instead. Pure.

A drain does not make VMs move yet. So `LiveMigrate` and `External` hold it back, as they do in KubeVirt for a VM that
cannot move, until somebody migrates or stops the VM; `LiveMigrateIfPossible` does not.
"""

from __future__ import annotations

from virtfleet.api import names
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, VMIS, Obj, owner_reference

_HOLDING = ("LiveMigrate", "External")


def name(vmi_uid: str) -> str:
    return f"kubevirt-disruption-budget-{vmi_uid}"


def budget(vmi: Obj, pods: int = 1) -> Obj | None:
    """The budget of a VMI's Pods, which goes when the VMI goes; None where a drain may go on.

    While a VM migrates it has two Pods, and neither may be evicted.
    """
    if vmi["spec"].get("evictionStrategy") not in _HOLDING:
        return None
    meta = vmi["metadata"]
    return {
        "apiVersion": POD_DISRUPTION_BUDGETS.api_version,
        "kind": POD_DISRUPTION_BUDGETS.kind,
        "metadata": {
            "name": name(meta["uid"]),
            "namespace": meta["namespace"],
            "ownerReferences": [owner_reference(vmi, VMIS)],
        },
        "spec": {"minAvailable": pods, "selector": {"matchLabels": {names.CREATED_BY: meta["uid"]}}},
    }
