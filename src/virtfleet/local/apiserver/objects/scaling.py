"""The scale subresource: one form (autoscaling/v1 Scale) for every kind that has replicas, wherever it keeps them."""

from __future__ import annotations

from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind, at
from virtfleet.local.apiserver.objects import causes, refusals

# How a Scale itself is patched: like any built-in object.
FORM = Kind(Resource("autoscaling", "v1", "scales", "Scale"), "scale", "ScaleList")


def read(kind: Kind, obj: Obj) -> Obj:
    """The Scale of an object."""
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status = {"replicas": at(kind.scale["statusReplicas"], obj) or 0}
    # Built-in kinds keep a LabelSelector, custom ones a text.
    selector = at(kind.scale.get("labelSelector", ""), obj)
    if selector:
        status["selector"] = str(from_label_selector(selector) if isinstance(selector, dict) else selector)
    replicas = at(kind.scale["specReplicas"], obj)
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
        raise refusals.invalid(FORM.resource, name, [fault])
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        obj["metadata"]["resourceVersion"] = version
    *parents, last = kind.scale["specReplicas"].split(".")
    place = obj
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = replicas
    return obj
