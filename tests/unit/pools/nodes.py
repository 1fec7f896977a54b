"""A second reading of Kubernetes' scheduling rules, written from their documentation; shares no code with VirtFleet.

The property tests judge affinities by it: were it the product's own evaluator, one mistake would hide the other.
"""

from __future__ import annotations

from typing import Any

Labels = dict[str, str]


def pod_admits(pod_spec: dict[str, Any], labels: Labels, name: str = "node") -> bool:
    """nodeSelector and required node affinity together, as the scheduler and the DaemonSet controller see them."""
    for key, wanted in (pod_spec.get("nodeSelector") or {}).items():
        if key not in labels or labels[key] != wanted:
            return False
    affinity = pod_spec.get("affinity")
    node_affinity = affinity.get("nodeAffinity") if affinity else None
    if not node_affinity:
        return True
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    admitted_by = [term for term in required.get("nodeSelectorTerms", []) if _term_admits(term, labels, name)]
    return len(admitted_by) > 0


def _term_admits(term: dict[str, Any], labels: Labels, name: str) -> bool:
    by_label = term.get("matchExpressions") or []
    by_field = term.get("matchFields") or []
    if len(by_label) + len(by_field) == 0:
        return False
    for e in by_label:
        if not _holds(e["operator"], e["key"] in labels, labels.get(e["key"], ""), e.get("values") or []):
            return False
    for e in by_field:
        assert e["key"] == "metadata.name"
        if not _holds(e["operator"], True, name, e.get("values") or []):
            return False
    return True


def _holds(operator: str, present: bool, value: str, values: list[str]) -> bool:
    if operator == "In":
        assert values, "the API server refuses In without values"
        return present and value in values
    if operator == "NotIn":
        assert values, "the API server refuses NotIn without values"
        return not (present and value in values)
    if operator == "Exists":
        return present
    if operator == "DoesNotExist":
        return not present
    raise AssertionError(f"operator {operator}")
