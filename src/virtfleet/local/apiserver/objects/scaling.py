"""The scale subresource: one form (autoscaling/v1 Scale) for every kind that has replicas, wherever it keeps them."""

from __future__ import annotations

from typing import Any

from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import causes, refusals

# How a Scale itself is patched: like any built-in object.
FORM = Kind(Resource("autoscaling", "v1", "scales", "Scale"), "scale", "ScaleList")


def read(kind: Kind, obj: Obj) -> Obj:
    """The Scale of an object."""
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status = {"replicas": _at(obj, kind.scale["statusReplicas"]) or 0}
    if selector := _selector(_at(obj, kind.scale.get("labelSelector", ""))):
        status["selector"] = selector
    replicas = _at(obj, kind.scale["specReplicas"])
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def write(kind: Kind, obj: Obj, scale: Obj) -> Obj:
    """`obj` with the replicas of a Scale, and the resourceVersion that its writer meant (if any)."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    name = obj["metadata"]["name"]
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise refusals.bad_request(f"Scale: spec.replicas must be an integer, not {causes.quoted(replicas)}")
    if replicas < 0:
        fault = causes.invalid("spec.replicas", replicas, "should be a non-negative integer")
        raise refusals.invalid(FORM, name, [fault])
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        obj["metadata"]["resourceVersion"] = version
    *parents, last = _parts(kind.scale["specReplicas"])
    place = obj
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = replicas
    return obj


def _parts(path: str) -> list[str]:
    return [part for part in path.split(".") if part]


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj if path else None
    for part in _parts(path):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _selector(value: Any) -> str:
    """A selector in its string form; kinds keep it as a string, a map of labels or a LabelSelector."""
    if not isinstance(value, dict):
        return value or ""
    structured = "matchLabels" in value or "matchExpressions" in value
    labels = value.get("matchLabels") or {} if structured else value
    terms = [f"{key}={labels[key]}" for key in sorted(labels)]
    for expression in (value.get("matchExpressions") or []) if structured else []:
        key, operator, values = expression["key"], expression["operator"], ",".join(expression.get("values") or [])
        terms.append(
            {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}.get(operator, f"!{key}")
        )
    return ",".join(terms)
