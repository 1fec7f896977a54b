"""What is POSTed to pods: bindings, the one way in which a pod gets its node, and evictions.

An eviction is a deletion that asks the pod's disruption budget first. `kubectl drain` uses it.
"""

from __future__ import annotations

import time

from virtfleet.api import conditions
from virtfleet.api.names import FINAL
from virtfleet.api.times import timestamp
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.errors import ApiError, ignoring, is_conflict
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, PODS, Obj
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.controllers.disruption import covers

ATTEMPTS = 10
SUCCESS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."


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
        with ignoring(is_conflict):  # somebody wrote the pod meanwhile
            if not dry_run:
                await api.replace(PODS, _bound(pod, target["name"]), subresource="binding")
            return SUCCESS
    raise _conflict(name, "the pod keeps changing; try again")


def _check(pod: Obj, meta: Obj) -> None:
    _check_preconditions(pod, meta, "pods/binding")
    name = pod["metadata"]["name"]
    if pod["metadata"].get("deletionTimestamp"):
        raise _conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node := pod["spec"].get("nodeName"):
        raise _conflict(name, f'pod {name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise _conflict(name, f"pod {name} has non-empty .spec.schedulingGates")


def _check_preconditions(pod: Obj, asked: Obj, kind: str) -> None:
    """Refuse to touch another pod than the one that was meant."""
    has = pod["metadata"]
    for field in ("uid", "resourceVersion"):
        if asked.get(field) and asked[field] != has[field]:
            why = f"Precondition failed: {field} in precondition: {asked[field]}, in object: {has[field]}"
            raise _conflict(has["name"], why, kind)


def _bound(pod: Obj, node: str) -> Obj:
    status = pod.get("status") or {}
    listed = conditions.put(status.get("conditions") or [], "PodScheduled", "True", time.time())
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": listed}}


def _conflict(name: str, why: str, kind: str = "pods/binding") -> ApiError:
    message = f'Operation cannot be fulfilled on {kind} "{name}": {why}'
    return ApiError("Conflict", message, details={"name": name, "kind": kind})


async def evict(api: KubeApi, obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
    """For `Operations.posts`. A pod that no budget counts goes only as it was looked at: it may count meanwhile."""
    if (obj.get("metadata") or {}).get("name", name) != name:
        raise ApiError("BadRequest", "name in URL does not match name in Eviction object")
    options = obj.get("deleteOptions") or {}
    dry_run = dry_run or bool(options.get("dryRun"))
    for _ in range(ATTEMPTS):
        pod = await api.get(PODS, name, namespace)
        _check_preconditions(pod, options.get("preconditions") or {}, "pods/eviction")
        budget = await _budget(api, pod)
        with ignoring(is_conflict):
            if budget:
                check(budget)
            if budget and not dry_run:
                await _spend(api, budget, name)
            if not dry_run:
                await _delete(api, pod, options, exactly=budget is None)
            return SUCCESS
    raise _too_many("The pod or its disruption budget keeps changing; try again.", retry_after=10)


async def _budget(api: KubeApi, pod: Obj) -> Obj | None:
    """The budget that counts the pod, if there is one. Pods that do not run count for none."""
    meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
    if phase in (*FINAL, "Pending") or meta.get("deletionTimestamp"):
        return None
    budgets = await api.list(POD_DISRUPTION_BUDGETS, meta["namespace"])
    covering = [budget for budget in budgets if covers(budget, meta.get("labels"))]
    if len(covering) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError("InternalError", why)
    return next((budget for budget in covering if not spares(budget, pod)), None)


async def _spend(api: KubeApi, budget: Obj, pod: str) -> None:
    """Take one disruption from the budget."""
    status = budget["status"]
    disrupted = {**(status.get("disruptedPods") or {}), pod: timestamp()}
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    await api.replace(POD_DISRUPTION_BUDGETS, {**budget, "status": spent}, subresource="status")


async def _delete(api: KubeApi, pod: Obj, options: Obj, *, exactly: bool) -> None:
    name, namespace, uid = (pod["metadata"][field] for field in ("name", "namespace", "uid"))
    listed = (pod.get("status") or {}).get("conditions") or []
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    listed = conditions.put(listed, "DisruptionTarget", "True", time.time(), **why)
    same = {"uid": uid} | ({"resourceVersion": pod["metadata"]["resourceVersion"]} if exactly else {})
    patch = {"metadata": same, "status": {"conditions": listed}}
    marked = await api.patch(PODS, name, patch, namespace, how=Patch.STRATEGIC, subresource="status")
    await api.delete(
        PODS,
        name,
        namespace,
        grace=options.get("gracePeriodSeconds"),
        propagation=options.get("propagationPolicy"),
        uid=uid,
        resource_version=marked["metadata"]["resourceVersion"] if exactly else None,
    )


def spares(budget: Obj, pod: Obj) -> bool:
    """Whether the budget lets the pod go without counting it, because it is not ready."""
    if conditions.holds((pod.get("status") or {}).get("conditions") or (), "Ready"):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    return bool(status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0)


def check(budget: Obj) -> None:
    """Refuse if the budget allows no disruption now."""
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", retry_after=10)
    if status.get("disruptionsAllowed", 0) > 0:
        return
    has, needs = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    why = "does not allow evicting pods currently"
    failed = conditions.find(status.get("conditions") or (), "DisruptionAllowed") or {}
    if failed.get("reason") == "SyncFailed":
        why += f" because it failed sync: {failed.get('message', '')}"
    elif has <= needs:
        why = f"needs {needs} healthy pods and has {has} currently"
    raise _too_many(f"The disruption budget {name} {why}")


def _too_many(cause: str, retry_after: int = 0) -> ApiError:
    later = {"retryAfterSeconds": retry_after} if retry_after else {}
    causes = [{"reason": "DisruptionBudget", "message": cause}]
    return ApiError("TooManyRequests", REFUSED, details={"causes": causes, **later})
