"""PodDisruptionBudgets: how many of the pods that a budget covers may be evicted now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from virtfleet.api import conditions
from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.api.times import seconds
from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.rollout import scaled

DELETION_TIMEOUT = 120.0  # seconds after which an eviction that was allowed but did not happen is forgotten


def wanted_healthy(spec: Mapping[str, Any], pods: int) -> int:
    """How many of the pods that there are should be healthy.

    Those that are ending count too: until they are gone, nobody knows whether others come in their place.
    """
    if spec.get("maxUnavailable") is not None:
        return max(pods - scaled(spec["maxUnavailable"], pods, up=True), 0)
    return scaled(spec.get("minAvailable"), pods, up=True)


def still_disrupted(noted: Mapping[str, str], pods: Iterable[Pod], now: float) -> dict[str, str]:
    """Evictions that were allowed and whose pods are still to go."""
    there = {p.name for p in pods if p.deleting is None}
    return {name: at for name, at in noted.items() if name in there and seconds(at) + DELETION_TIMEOUT > now}


class Disruptions:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._budgets, self._pods = caches.budgets, caches.pods
        self.controller = Controller("disruption", self.reconcile)
        self.controller.follow(self._budgets)
        self.controller.follow(self._pods, self._budgets_of)

    def _budgets_of(self, pod: Pod) -> Iterable[str]:
        return [key_of(b) for b in self._budgets.by_index("namespace", pod.namespace) if covers(b, pod.labels)]

    async def reconcile(self, key: str) -> float | None:
        """Count, and write what the count allows."""
        budget = self._budgets.get(key)
        if budget is None or budget["metadata"].get("deletionTimestamp"):
            return None
        now = time.time()
        status = budget.get("status") or {}
        there = self._pods.by_index("namespace", budget["metadata"]["namespace"])
        pods = [p for p in there if not p.terminal and covers(budget, p.labels)]
        disrupted = still_disrupted(status.get("disruptedPods") or {}, pods, now)
        desired = wanted_healthy(budget["spec"], len(pods))
        current = sum(p.ready and p.deleting is None and p.name not in disrupted for p in pods)
        allowed = max(current - desired, 0)
        word, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
        listed = conditions.put(status.get("conditions") or [], "DisruptionAllowed", word, now, reason=reason)
        counted = {
            **status,
            "expectedPods": len(pods),
            "desiredHealthy": desired,
            "currentHealthy": current,
            "disruptionsAllowed": allowed,
            "disruptedPods": disrupted,
            "observedGeneration": budget["metadata"].get("generation", 0),
            "conditions": [{"message": "", **c} for c in listed],  # which its schema demands
        }
        if counted != status:  # an eviction that came between makes this fail, and then count again
            await self._budgets.replace({**budget, "status": counted}, subresource="status")
        return min((seconds(at) + DELETION_TIMEOUT - now for at in disrupted.values()), default=None)


def covers(budget: Obj, labels: Mapping[str, str] | None) -> bool:
    """Whether a pod with these labels is the budget's business."""
    try:
        return from_label_selector((budget.get("spec") or {}).get("selector")).matches(labels)
    except SelectorError:
        return False
