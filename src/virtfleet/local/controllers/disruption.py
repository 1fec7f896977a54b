"""PodDisruptionBudgets: how many of the pods that a budget covers may be evicted now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from virtfleet.api import conditions
from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.api.times import seconds
from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.caches import Caches, controller_of
from virtfleet.local.controllers.deployment import scaled
from virtfleet.local.controllers.pods import Pod

DELETION_TIMEOUT = 120.0  # seconds after which an eviction that was allowed but did not happen is forgotten


def expectation(spec: Mapping[str, object], covered: int, scale: int) -> tuple[int, int]:
    """How many pods there should be, and how many of them healthy.

    `scale` is what the workloads behind the pods were asked for: a percentage, or a number that may be missing, is of
    that and not of the pods that happen to be there.
    """
    at_most, at_least = spec.get("maxUnavailable"), spec.get("minAvailable")
    if at_most is not None:
        assert isinstance(at_most, int | str)
        return scale, max(scale - scaled(at_most, scale, up=True), 0)
    if isinstance(at_least, str):
        return scale, scaled(at_least, scale, up=True)
    return covered, at_least if isinstance(at_least, int) else 0


def needs_scale(spec: Mapping[str, object]) -> bool:
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def still_disrupted(noted: Mapping[str, str], pods: Iterable[Pod], now: float) -> dict[str, str]:
    """Evictions that were allowed and whose pods are still to go."""
    there = {p.name for p in pods if p.deleting is None}
    return {name: at for name, at in noted.items() if name in there and seconds(at) + DELETION_TIMEOUT > now}


class Disruptions:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._budgets, self._pods = caches.budgets, caches.pods
        self._replica_sets, self._deployments = caches.replica_sets, caches.deployments
        self.controller = Controller("disruption", self.reconcile, [self._replica_sets, self._deployments])
        self.controller.follow(self._budgets)
        self.controller.follow(self._pods, self._budgets_of)

    def _budgets_of(self, pod: Pod) -> Iterable[str]:
        return [key_of(b) for b in self._budgets.by_index("namespace", pod.namespace) if covers(b, pod.labels)]

    async def reconcile(self, key: str) -> float | None:
        """Count, and write what the count allows."""
        budget = self._budgets.get(key)
        if budget is None or budget["metadata"].get("deletionTimestamp"):
            return None
        now, status = time.time(), budget.get("status") or {}
        there = self._pods.by_index("namespace", budget["metadata"]["namespace"])
        pods = [p for p in there if not p.terminal and covers(budget, p.labels)]
        disrupted = still_disrupted(status.get("disruptedPods") or {}, pods, now)
        scale, lone = self._scale(pods) if needs_scale(budget["spec"]) else (0, None)
        if lone:
            why = f'found no controllers for pod "{lone.name}"'
            await self._write(budget, {**status, "disruptionsAllowed": 0}, "SyncFailed", why, now)
            return None
        expected, desired = expectation(budget["spec"], len(pods), scale)
        current = sum(p.ready and p.deleting is None and p.name not in disrupted for p in pods)
        allowed = max(current - desired, 0) if expected > 0 else 0
        numbers = {
            "expectedPods": expected,
            "desiredHealthy": desired,
            "currentHealthy": current,
            "disruptionsAllowed": allowed,
            "disruptedPods": disrupted,
            "observedGeneration": budget["metadata"].get("generation", 0),
        }
        reason = "SufficientPods" if allowed else "InsufficientPods"
        await self._write(budget, {**status, **numbers}, reason, "", now)
        return min((seconds(at) + DELETION_TIMEOUT - now for at in disrupted.values()), default=None)

    def _scale(self, pods: list[Pod]) -> tuple[int, Pod | None]:
        """What the workloads of the pods were asked for, together, and a pod whose workload does not say that.

        Pods without a workload do not count.
        """
        total: dict[str, int] = {}
        for pod in pods:
            if not pod.owner_uid:
                continue
            replica_set = self._replica_sets.get(f"{pod.namespace}/{pod.owner_name}")
            if pod.owner_kind != "ReplicaSet" or replica_set is None:
                return 0, pod
            owner = controller_of(replica_set)
            deployment = self._deployments.get(f"{pod.namespace}/{owner['name']}") if owner else None
            workload = deployment or replica_set
            total[workload["metadata"]["uid"]] = workload["spec"].get("replicas", 1)
        return sum(total.values()), None

    async def _write(self, budget: Obj, status: Obj, reason: str, message: str, now: float) -> None:
        """Write the status, unless an eviction came between: then count again."""
        allowed = "True" if reason == "SufficientPods" else "False"
        listed = status.get("conditions") or []
        listed = conditions.put(listed, "DisruptionAllowed", allowed, now, reason=reason, message=message)
        status = {**status, "conditions": [{"message": "", **c} for c in listed]}  # which its schema demands
        if status != budget.get("status"):
            await self._budgets.replace({**budget, "status": status}, subresource="status")


def covers(budget: Obj, labels: Mapping[str, str] | None) -> bool:
    """Whether a pod with these labels is the budget's business."""
    try:
        return from_label_selector((budget.get("spec") or {}).get("selector")).matches(labels)
    except SelectorError:
        return False
