"""POST pods/binding: the one way in which a pod gets its node."""

from __future__ import annotations

import time

from virtfleet.api import conditions
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_conflict
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.apiserver.rights.access import User

ATTEMPTS = 10
_KIND = "pods/binding"
SUCCESS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


async def bind(api: KubeApi, obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
    """For `Operations.posts`. A pod is bound once; node and condition are written together."""
    meta, target = obj.get("metadata") or {}, obj.get("target") or {}
    if meta.get("name", name) != name:
        raise ApiError("BadRequest", "name in URL does not match name in Binding object")
    if target.get("kind", "Node") != "Node" or not target.get("name"):
        raise ApiError("BadRequest", "target: a binding needs the name of a Node")
    for _ in range(ATTEMPTS):
        pod = await api.get(PODS, name, namespace)
        _check(pod, meta)
        if dry_run:
            return SUCCESS
        with ignoring(is_conflict):  # somebody wrote the pod meanwhile
            await api.replace(PODS, _bound(pod, meta, target["name"]), subresource="binding")
            return SUCCESS
    raise _conflict(name, "the pod keeps changing; try again")


def _check(pod: Obj, meta: Obj) -> None:
    check_preconditions(pod, meta, _KIND)
    name = pod["metadata"]["name"]
    if pod["metadata"].get("deletionTimestamp"):
        raise _conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node := pod["spec"].get("nodeName"):
        raise _conflict(name, f'pod {name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise _conflict(name, f"pod {name} has non-empty .spec.schedulingGates")


def check_preconditions(pod: Obj, asked: Obj, kind: str) -> None:
    """Refuse to touch another pod than the one that was meant."""
    has = pod["metadata"]
    for field in ("uid", "resourceVersion"):
        if asked.get(field) and asked[field] != has[field]:
            why = f"Precondition failed: {field} in precondition: {asked[field]}, in object: {has[field]}"
            raise _conflict(has["name"], why, kind)


def _bound(pod: Obj, meta: Obj, node: str) -> Obj:
    status = pod.get("status") or {}
    listed = conditions.put(status.get("conditions") or [], "PodScheduled", "True", time.time())
    notes = {**(pod["metadata"].get("annotations") or {}), **(meta.get("annotations") or {})}
    return {
        **pod,
        "metadata": {**pod["metadata"], **({"annotations": notes} if notes else {})},
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": listed},
    }


def _conflict(name: str, why: str, kind: str = _KIND) -> ApiError:
    message = f'Operation cannot be fulfilled on {kind} "{name}": {why}'
    return ApiError("Conflict", message, details={"name": name, "kind": kind})
