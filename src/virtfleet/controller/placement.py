"""Where a running VM may be: it follows its template, and leaves a node that does not fit any more. Pure."""

from __future__ import annotations

from typing import Any, Final

from virtfleet.api.names import VMICondition
from virtfleet.api.selectors import node_selector_matches, tolerates
from virtfleet.controller.following import NOTHING, Following, Obj, Section, replaced, settled
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.installation import Installation

_FIELDS: Final = ("nodeSelector", "affinity", "tolerations")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def follow(instance: Obj, template: Section, cluster: Installation) -> Following:
    """The template's placement for the instance. Whether its node still fits is for others to see."""
    spec = instance["spec"]
    changed = {
        name: replaced(spec.get(name), template.get(name))
        for name in _FIELDS
        if not _same(spec.get(name), template.get(name))
    }
    if not changed:
        return NOTHING
    return Following(changed, {VMICondition.MIGRATION_REQUIRED: f"its {', '.join(changed)} changed"})


def settle(old: Section, new: Section, instance: Section) -> tuple[Obj, Obj]:
    """Without the placement that the instance has."""
    return settled(old, new, instance, _FIELDS, _same)


def move(instance: Obj, node: NodeRecord) -> str:
    """Why the node is none for the instance any more."""
    spec, labels = instance["spec"], node.metadata.labels
    lacking = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if labels.get(key) != value}
    if lacking:
        named = ", ".join(f"{key}={value}" for key, value in sorted(lacking.items()))
        return f"node {node.name} does not have {named}, which nodeSelector asks for"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if not node_selector_matches(required, labels, node.name):
        return f"node {node.name} does not match the node affinity"
    for taint in node.spec.taints:
        kept_off = {"key": taint.key, "value": taint.value, "effect": taint.effect}
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(spec.get("tolerations") or (), kept_off):
            return f"the taint {taint.key} of node {node.name} is not tolerated"
    return ""


def _same(one: Any, other: Any) -> bool:
    return (one or None) == (other or None)
