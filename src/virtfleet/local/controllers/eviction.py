"""POST pods/eviction: a deletion that asks the pod's disruption budget first. `kubectl drain` uses it."""

from __future__ import annotations

import time
from typing import Any

from virtfleet.api import conditions
from virtfleet.api.names import FINAL
from virtfleet.api.times import timestamp
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.errors import ApiError, is_conflict
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, PODS, Obj
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.controllers.binding import SUCCESS
from virtfleet.local.controllers.disruption import covers

ATTEMPTS = 10
REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."


class Eviction:
    """The handler for `Operations.posts`."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def __call__(self, obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
        if (obj.get("metadata") or {}).get("name", name) != name:
            raise ApiError("BadRequest", "name in URL does not match name in Eviction object")
        options = obj.get("deleteOptions") or {}
        dry_run = dry_run or bool(options.get("dryRun"))
        for _ in range(ATTEMPTS):
            pod = await self._api.get(PODS, name, namespace)
            unguarded = _may_go_anyway(pod)
            guard = None if unguarded else await self._budget(pod)
            # An unready pod of a budget that is satisfied does not count; it may go, but only as long as it is unready.
            same_pod = unguarded or (guard is not None and spares(guard, pod))
            try:
                if guard is not None and not same_pod:
                    await self._spend(guard, name, dry_run)
                if not dry_run:
                    await self._delete(pod, options, exactly=same_pod)
            except ApiError as error:
                if is_conflict(error) and not (options.get("preconditions") or {}).get("resourceVersion"):
                    continue
                raise
            return SUCCESS
        raise _too_many("The pod or its disruption budget keeps changing; try again.", retry_after=10)

    async def _budget(self, pod: Obj) -> Obj | None:
        """The budget that covers the pod."""
        meta = pod["metadata"]
        budgets = await self._api.list(POD_DISRUPTION_BUDGETS, meta["namespace"])
        covering = [budget for budget in budgets if covers(budget, meta.get("labels"))]
        if len(covering) > 1:
            why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ApiError("InternalError", why)
        return covering[0] if covering else None

    async def _spend(self, budget: Obj, pod: str, dry_run: bool) -> None:
        """Take one disruption from the budget, or refuse."""
        check(budget)
        if dry_run:
            return
        status = budget["status"]
        left = status["disruptionsAllowed"] - 1
        disrupted = {**(status.get("disruptedPods") or {}), pod: timestamp()}
        spent = {**status, "disruptionsAllowed": left, "disruptedPods": disrupted}
        await self._api.replace(POD_DISRUPTION_BUDGETS, {**budget, "status": spent}, subresource="status")

    async def _delete(self, pod: Obj, options: Obj, *, exactly: bool) -> None:
        meta, asked = pod["metadata"], options.get("preconditions") or {}
        listed = conditions.put(
            (pod.get("status") or {}).get("conditions") or [],
            "DisruptionTarget",
            "True",
            time.time(),
            reason="EvictionByEvictionAPI",
            message="Eviction API: evicting",
        )
        version = asked.get("resourceVersion") or (meta["resourceVersion"] if exactly else None)
        patch: Obj = {"metadata": {"uid": asked.get("uid") or meta["uid"]}, "status": {"conditions": listed}}
        if version:
            patch["metadata"]["resourceVersion"] = version
        marked = await self._api.patch(
            PODS, meta["name"], patch, meta["namespace"], how=Patch.STRATEGIC, subresource="status"
        )
        await self._api.delete(
            PODS,
            meta["name"],
            meta["namespace"],
            grace=options.get("gracePeriodSeconds"),
            propagation=options.get("propagationPolicy"),
            uid=meta["uid"],
            resource_version=marked["metadata"]["resourceVersion"] if version else None,
        )


def _may_go_anyway(pod: Obj) -> bool:
    """Pods that do not run count for no budget."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in (*FINAL, "Pending") or bool(pod["metadata"].get("deletionTimestamp"))


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
    failed = conditions.find(status.get("conditions") or (), "DisruptionAllowed") or {}
    if failed.get("reason") == "SyncFailed":
        why = f"does not allow evicting pods currently because it failed sync: {failed.get('message', '')}"
    elif has <= needs:
        why = f"needs {needs} healthy pods and has {has} currently"
    else:
        why = "does not allow evicting pods currently"
    raise _too_many(f"The disruption budget {name} {why}")


def _too_many(cause: str, retry_after: int = 0) -> ApiError:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    return ApiError("TooManyRequests", REFUSED, details=details)
