"""Why a launcher Pod cannot go to a node: the scheduler's rules, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtfleet.api import names
from virtfleet.api.quantity import Quantity
from virtfleet.api.selectors import node_selector_matches, tolerates

Obj = dict[str, Any]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ARCHITECTURE = "kubernetes.io/arch"
_CORDONED = "node.kubernetes.io/unschedulable"


def obstacles(pod: Obj, node: Obj, volumes: Mapping[tuple[str, str], Obj], *, live: bool = False) -> list[str]:
    """What keeps the Pod from the node; nothing where it can go there. `volumes` are those of claims that are bound.

    Of a node out of a file that no handler has labelled, handlers' labels and devices are taken for granted.
    """
    spec, name, labels = pod["spec"], node["metadata"]["name"], node["metadata"].get("labels") or {}
    served = live or names.SCHEDULABLE in labels
    why_not = [
        f"the node lacks {key}={value}" if key not in labels else f"the node has {key}={labels[key]}, not {value}"
        for key, value in sorted(spec["nodeSelector"].items())
        if labels.get(key) != value and (served or not _by_agents(key))
    ]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if not node_selector_matches(required, labels, name):
        why_not.append(f"its labels do not fit the affinity: {_terms(required)}")
    for volume in spec.get("volumes") or ():
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
        bound = volumes.get((pod["metadata"].get("namespace", "default"), claim)) or {}
        required = (bound.get("spec", {}).get("nodeAffinity") or {}).get("required")
        if required and not node_selector_matches(required, labels, name):
            why_not.append(f"the volume of claim {claim} is elsewhere: {_terms(required)}")
    own = node.get("spec") or {}
    cordoned = bool(own.get("unschedulable"))
    if cordoned:
        why_not.append(f"the node is cordoned (kubectl uncordon {name})")
    taints = [t for t in own.get("taints") or () if not (cordoned and t["key"] == _CORDONED)]
    why_not += [
        f"taint {taint['key']}:{taint['effect']} is not tolerated"
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(spec.get("tolerations") or (), taint)
    ]
    return why_not + _short(pod, node, served)


def _by_agents(key: str) -> bool:
    """Whether a node has the label only once its agents run."""
    return key in (_ARCHITECTURE, names.IMAGE_VOLUMES) or key.startswith("kubevirt.io/") or ".node.kubevirt.io/" in key


def _terms(required: Obj | None) -> str:
    """Node selector terms as people write them: `a In [1], b NotIn [2] or c Exists`."""
    terms = [
        [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        for term in (required or {}).get("nodeSelectorTerms") or ()
    ]
    return " or ".join(", ".join(map(_condition, conditions)) for conditions in terms)


def _condition(c: Obj) -> str:
    return f"{c['key']} {c['operator']}" + (f" [{', '.join(c['values'])}]" if c.get("values") else "")


def _short(pod: Obj, node: Obj, served: bool) -> list[str]:
    """Amounts that the node does not have, used or not."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    short = []
    for container in pod["spec"]["containers"]:
        for name, amount in container["resources"].get("requests", {}).items():
            device = "/" in name
            if name.startswith(names.DEVICE_PREFIX) and not served:
                continue
            if not device and name not in offered:
                continue  # a file of nodes need not tell of CPUs and memory
            if Quantity.parse(amount) > Quantity.parse(offered.get(name, 0)):
                short.append(f"the node offers {offered.get(name, 0)} {name} of {amount}")
    return short
