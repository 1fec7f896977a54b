"""Owner references: who controls whom, and how objects are adopted and released.

A workload controls the objects that its selector matches: it adopts those that nobody controls and releases its own
when their labels change, so that people can take a pod out of a set and look at it.
"""

from __future__ import annotations

from typing import Any

from virtfleet.kube.events import Reference
from virtfleet.kube.resource import Obj, Resource, owner_reference


def about(obj: Obj, resource: Resource) -> Reference:
    """The object as events name it; the cached form of an object need not say its kind."""
    meta = obj["metadata"]
    return Reference(resource.api_version, resource.kind, meta.get("namespace", ""), meta["name"], meta["uid"])


def controller_of(obj: Obj) -> dict[str, Any] | None:
    """The reference to the object's controller, if it has one."""
    return next((r for r in obj["metadata"].get("ownerReferences") or () if r.get("controller")), None)


def is_controlled_by(obj: Obj, uid: str) -> bool:
    ref = controller_of(obj)
    return ref is not None and ref["uid"] == uid


def adoption(owner: Obj, resource: Resource) -> Obj:
    """A strategic merge patch that puts an object under the owner's control."""
    return {"metadata": {"ownerReferences": [owner_reference(owner, resource)]}}


def release(owner_uid: str) -> Obj:
    """A strategic merge patch that takes the owner's reference off an object."""
    return {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner_uid}]}}


def pod_from_template(template: Obj, owner: Obj, resource: Resource) -> Obj:
    """A pod as the template says, controlled by `owner` and named after it."""
    meta = template.get("metadata") or {}
    kept = {k: meta[k] for k in ("labels", "annotations", "finalizers") if meta.get(k)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **kept,
            "generateName": f"{owner['metadata']['name']}-",
            "ownerReferences": [owner_reference(owner, resource)],
        },
        "spec": template["spec"],
    }
