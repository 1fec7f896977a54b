"""ReplicaSets: as many pods as asked for, of one template. A set's pods are those that name it as their controller."""

from __future__ import annotations

import time
from collections.abc import Iterable

from virtfleet.api import conditions
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import REPLICA_SETS, Obj
from virtfleet.local.controllers.caches import BURST, Caches, PodControl
from virtfleet.local.controllers.pods import Pod, owners_of, pod_from_template


def deletion_order(pods: Iterable[Pod]) -> list[Pod]:
    """The pods with those first whose loss hurts least: without a node, not running, not ready, the youngest."""
    return sorted(pods, key=lambda p: (bool(p.node), p.phase == "Running", p.ready, -p.created, p.uid))


def status_of(replica_set: Obj, active: list[Pod], failure: str, now: float) -> Obj:
    """The status that the set should have. `failure` is why the last attempt to reach its size did not succeed."""
    spec, listed = replica_set["spec"], (replica_set.get("status") or {}).get("conditions") or []
    ready = sum(pod.ready for pod in active)
    status = {
        "replicas": len(active),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    if failure:
        reason = "FailedCreate" if len(active) < spec.get("replicas", 1) else "FailedDelete"
        status["conditions"] = conditions.put(listed, "ReplicaFailure", "True", now, reason=reason, message=failure)
    elif listed:
        status["conditions"] = conditions.drop(listed, "ReplicaFailure")
    return status


class ReplicaSets:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._sets, self._pods = caches.replica_sets, caches.pods
        self._control = PodControl(caches, "replicaset-controller", REPLICA_SETS)
        self.controller = Controller("replicaset", self.reconcile, workers=5)
        self.controller.follow(self._sets)
        self.controller.follow(self._pods, owners_of("ReplicaSet"))

    async def reconcile(self, key: str) -> None:
        """Reach the wanted number of pods, say how it stands."""
        replica_set = self._sets.get(key)
        if replica_set is None:
            return
        goes = replica_set["metadata"].get("deletionTimestamp")
        failure = "" if goes else await self._resize(replica_set, self._active(replica_set))
        # The pods are read again: what was just created or deleted counts already.
        status = status_of(replica_set, self._active(replica_set), failure, time.time())
        await self._sets.write_status(replica_set, status)
        if failure:
            raise ApiError("InternalError", failure)

    def _active(self, replica_set: Obj) -> list[Pod]:
        return [p for p in self._pods.by_index("owner", replica_set["metadata"]["uid"]) if p.active]

    async def _resize(self, replica_set: Obj, active: list[Pod]) -> str:
        """Create or delete pods; the answer is what went wrong, if anything did."""
        missing = replica_set["spec"].get("replicas", 1) - len(active)
        try:
            if missing > 0:
                pod = pod_from_template(replica_set["spec"]["template"], replica_set, REPLICA_SETS)
                await self._control.create(replica_set, [pod] * min(missing, BURST))
            elif missing < 0:
                await self._control.delete(replica_set, deletion_order(active)[:-missing])
        except ApiError as error:
            if error.reason == "Forbidden" and "being terminated" in error.message:
                return ""  # the namespace is on its way out, and the set with it
            return error.message
        return ""
