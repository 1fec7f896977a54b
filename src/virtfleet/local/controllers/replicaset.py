"""ReplicaSets: as many pods as asked for, of one template."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import REPLICA_SETS, Obj
from virtfleet.local.controllers import conditions, ownership
from virtfleet.local.controllers.claiming import adopters, all_of, claim_pods
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.podstore import PodStore, owners_of

BURST = 500  # pods created or deleted in one go
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_order(pods: Iterable[Pod], related: Iterable[Pod]) -> list[Pod]:
    """The pods with those first whose loss hurts least, by the rules of Kubernetes.

    `related` are all pods of the set: of two pods, the one with more siblings on its node goes.
    """
    crowd: dict[str, int] = {}
    for pod in related:
        crowd[pod.node] = crowd.get(pod.node, 0) + 1

    def rank(pod: Pod) -> tuple[Any, ...]:
        return (
            bool(pod.node),
            _PHASES.get(pod.phase, 0),
            pod.ready,
            pod.deletion_cost,
            -crowd.get(pod.node, 0),
            -pod.ready_since if pod.ready else 0.0,
            -pod.restarts,
            -pod.created,
            pod.uid,
        )

    return sorted(pods, key=rank)


def status_of(replica_set: Obj, active: list[Pod], failure: str, now: float) -> Obj:
    """The status that the set should have. `failure` is why the last attempt to reach its size did not succeed."""
    spec, old = replica_set["spec"], replica_set.get("status") or {}
    template_labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    min_ready = spec.get("minReadySeconds") or 0
    if failure:
        short = len(active) < spec.get("replicas", 1)
        condition = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate" if short else "FailedDelete",
            "message": failure,
        }
        listed = conditions.put(old.get("conditions"), condition, now)
    else:
        listed = conditions.drop(old.get("conditions"), "ReplicaFailure")
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(template_labels.items() <= p.labels.items() for p in active),
        "readyReplicas": sum(p.ready for p in active),
        "availableReplicas": sum(p.available(min_ready, now) for p in active),
        "observedGeneration": replica_set["metadata"].get("generation", 0),
        "conditions": listed,
    }


class ReplicaSets:
    """The controller."""

    def __init__(self, api: KubeApi, sets: Cache[Obj], pods: PodStore, recorder: Recorder) -> None:
        self._api = api
        self._sets = sets
        self._pods = pods
        self._recorder = recorder
        self._controller = Controller("replicaset", self.reconcile, workers=5)
        self._controller.follow(sets)
        self._controller.follow(pods.cache, owners_of("ReplicaSet"))
        self._controller.follow(pods.cache, partial(adopters, sets))

    async def run(self) -> None:
        await self._controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Claim pods, reach the wanted number of them, say how it stands."""
        replica_set = self._sets.get(key)
        if replica_set is None:
            return None
        pods = await claim_pods(self._api, self._pods, replica_set, REPLICA_SETS)
        failure = ""
        if not replica_set["metadata"].get("deletionTimestamp"):
            failure = await self._resize(replica_set, [p for p in pods if p.active])
        # The pods are read again: what was just created or deleted counts already.
        active = [p for p in self._pods.owned_by(replica_set["metadata"]["uid"]) if p.active]
        now = time.time()
        await self._write_status(replica_set, status_of(replica_set, active, failure, now))
        if failure:
            raise ApiError("InternalError", failure)
        return self._until_available(replica_set, active, now)

    async def _resize(self, replica_set: Obj, active: list[Pod]) -> str:
        """Create or delete pods; the answer is what went wrong, if anything did."""
        missing = replica_set["spec"].get("replicas", 1) - len(active)
        try:
            if missing > 0:
                await self._create(replica_set, min(missing, BURST))
            elif missing < 0:
                await self._delete(replica_set, active, min(-missing, BURST))
        except ApiError as error:
            if error.reason == "Forbidden" and "being terminated" in error.message:
                return ""  # the namespace is on its way out, and the set with it
            return error.message
        return ""

    async def _create(self, replica_set: Obj, count: int) -> None:
        """Create pods in batches that double, so that what fails for all of them fails only for a few."""
        namespace = replica_set["metadata"]["namespace"]
        pod = ownership.pod_from_template(replica_set["spec"]["template"], replica_set, REPLICA_SETS)
        about = ownership.about(replica_set, REPLICA_SETS)
        batch = 1
        while count > 0:
            batch = min(batch, count)
            try:
                names = await all_of(self._pods.create(pod, namespace) for _ in range(batch))
            except ApiError as error:
                self._recorder.warning(about, "FailedCreate", f"Error creating: {error.message}")
                raise
            for name in names:
                self._recorder.normal(about, "SuccessfulCreate", f"Created pod: {name}")
            count -= batch
            batch *= 2

    async def _delete(self, replica_set: Obj, active: list[Pod], count: int) -> None:
        related = self._pods.owned_by(replica_set["metadata"]["uid"])
        doomed = deletion_order(active, related)[:count]
        await all_of(self._pods.delete(pod) for pod in doomed)
        for pod in doomed:
            self._recorder.normal(
                ownership.about(replica_set, REPLICA_SETS), "SuccessfulDelete", f"Deleted pod: {pod.name}"
            )

    async def _write_status(self, replica_set: Obj, status: Obj) -> None:
        if status != {"conditions": [], **(replica_set.get("status") or {})}:
            meta = replica_set["metadata"]
            answer = await self._api.patch(
                REPLICA_SETS, meta["name"], {"status": status}, meta["namespace"], subresource="status"
            )
            self._sets.observe(answer)

    def _until_available(self, replica_set: Obj, active: list[Pod], now: float) -> float | None:
        """When the next ready pod will have been so for minReadySeconds; nobody else would tell."""
        min_ready = replica_set["spec"].get("minReadySeconds") or 0
        waits = [p.ready_since + min_ready - now for p in active if p.ready and not p.available(min_ready, now)]
        return max(min(waits), 0.1) if waits else None
