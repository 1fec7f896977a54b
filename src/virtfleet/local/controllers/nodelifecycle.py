"""Nodes that fall silent: Ready becomes Unknown, taints keep pods away, and pods that do not tolerate them are evicted.

A node is alive as long as its Lease (or its Ready condition) keeps changing. What counts is when the change was seen
here and not what the node's clock says, so that neither a wrong clock nor a restart of this process kills a node.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from virtfleet.api import names, times
from virtfleet.api.selectors import tolerates
from virtfleet.api.times import timestamp
from virtfleet.kube.api import Patch
from virtfleet.kube.controller import Controller
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.caches import LEASE_NAMESPACE, Caches
from virtfleet.local.controllers.nodes import NOT_READY, UNREACHABLE, UNSCHEDULABLE, NodeView
from virtfleet.local.controllers.pods import Pod

GRACE = 40.0  # seconds without a sign of life; as long, pods of a node that does not exist are left alone

# The taints that this controller sets and removes; all others are people's.
OURS = {NOT_READY, UNREACHABLE, UNSCHEDULABLE}
_BY_READINESS = {
    "Unknown": [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
    "False": [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
    "": [(NOT_READY, "NoSchedule")],  # never reported: nothing runs there that could be evicted
}
_WATCHED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")

Taint = dict[str, Any]


def taints(node: NodeView, now: float) -> tuple[Taint, ...]:
    """The taints that the node should have: ours as its conditions say, everybody else's as they are."""
    wanted = [*_BY_READINESS.get(node.ready, ())]
    if node.unschedulable:
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    kept = [t for t in node.taints if t["key"] not in OURS or (t["key"], t["effect"]) in wanted]
    missing = [ours for ours in wanted if ours not in {(t["key"], t["effect"]) for t in kept}]
    return (*kept, *({"key": key, "effect": effect, "timeAdded": timestamp(now)} for key, effect in missing))


def eviction_time(pod: Pod, present: Iterable[Taint]) -> float | None:
    """When the pod has to leave its node: at 0 if it tolerates a taint not at all, None if it may stay."""
    ends = []
    for taint in present:
        if taint.get("effect") != "NoExecute":
            continue
        covering = [t for t in pod.template.tolerations if tolerates([t], taint)]
        if not covering:
            return 0.0
        limits = [t["tolerationSeconds"] for t in covering if t.get("tolerationSeconds") is not None]
        if limits and len(limits) == len(covering):
            added = times.seconds(taint["timeAdded"]) if taint.get("timeAdded") else 0.0
            ends.append(added + max(min(limits), 0))
    return min(ends, default=None)


class NodeLifecycle:
    """The controller; keys are names of nodes, of those too that only pods still speak of."""

    def __init__(self, caches: Caches, *, grace: float = GRACE) -> None:
        self._nodes, self._leases, self._pods = caches.nodes, caches.leases, caches.pods
        self._recorder = caches.recorder("node-controller")
        self._grace = grace
        # By node: its last sign of life, and when it came.
        self._signs: dict[str, tuple[tuple[str | None, ...], float]] = {}
        self.controller = Controller("nodelifecycle", self.reconcile, [self._leases], workers=4)
        self.controller.follow(self._nodes)
        self.controller.follow(self._pods, lambda pod: [pod.node] if pod.node else [])

    async def reconcile(self, name: str) -> float | None:
        """Judge the node's life, keep its taints, evict what has to leave."""
        node = self._nodes.get(name)
        if node is None:
            return await self._collect_pods(name)
        lease = self._leases.get(f"{LEASE_NAMESPACE}/{name}") or {}
        silent_in = self._silent_in(name, (lease.get("spec") or {}).get("renewTime"), node.heartbeat)
        if silent_in <= 0 and node.ready != "Unknown":
            await self._declare_unknown(node)
        node = self._nodes.get(name) or node
        if node.ready in ("Unknown", "False"):
            await self._unready_pods(name)
        await self._keep_taints(node)
        evict_in = await self._evict(name)
        await self._collect_ended(node)
        return min(w for w in (silent_in if silent_in > 0 else self._grace, evict_in) if w is not None)

    # -- signs of life

    def _silent_in(self, name: str, *sign: str | None) -> float:
        """Seconds until the node counts as dead, or as gone where there is no sign; negative if it does already."""
        now = time.monotonic()
        if name not in self._signs or self._signs[name][0] != sign:
            self._signs[name] = (sign, now)
        return self._signs[name][1] + self._grace - now

    async def _declare_unknown(self, node: NodeView) -> None:
        why = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
        if not node.ready:
            why = {"reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status."}
        listed = [{"type": kind, "status": "Unknown", **why} for kind in _WATCHED]
        for condition in listed:
            if node.conditions.get(condition["type"]) != "Unknown":
                condition["lastTransitionTime"] = timestamp()
        await self._nodes.patch(node.name, {"status": {"conditions": listed}}, subresource="status")
        said = f"Node {node.name} status is now: NodeNotReady"
        self._recorder.normal(Reference("v1", "Node", "", node.name, node.uid), "NodeNotReady", said)

    async def _unready_pods(self, name: str) -> None:
        """Nobody on a silent node says that its pods stopped answering."""
        for pod in self._pods.by_index("node", name):
            if pod.ready:
                await self._put_condition(pod, {"type": "Ready", "status": "False"})
                self._recorder.warning(pod.reference, "NodeNotReady", "Node is not ready")

    # -- taints

    async def _keep_taints(self, node: NodeView) -> None:
        if taints(node, 0.0) == node.taints:
            return
        live = await self._nodes.find(node.name)
        if live is None or live["metadata"]["uid"] != node.uid:
            return
        # The list has no key of its own that a patch could merge by, so it is written as a whole, on what is there now.
        present = tuple(live.get("spec", {}).get("taints") or ())
        wanted = taints(msgspec.structs.replace(node, taints=present), time.time())
        if wanted != present:
            meta = {"resourceVersion": live["metadata"]["resourceVersion"]}
            patch = {"metadata": meta, "spec": {"taints": list(wanted)}}
            await self._nodes.patch(node.name, patch, uid=node.uid, how=Patch.MERGE)

    async def _evict(self, name: str) -> float | None:
        """Delete the pods whose time is over; the answer is when the next one's will be."""
        node = self._nodes.get(name)
        present = [t for t in node.taints if t.get("effect") == "NoExecute"] if node else []
        waits = []
        for pod in self._pods.by_index("node", name) if present else ():
            end = None if pod.deleting is not None else eviction_time(pod, present)
            if end is None:
                continue
            left = end - time.time()
            if left > 0:
                waits.append(left)
                continue
            self._recorder.normal(pod.reference, "TaintManagerEviction", f"Marking for deletion Pod {pod.key}")
            await self._mark(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            await self._pods.remove(pod.key, pod.uid)
        return min(waits, default=None)

    # -- pods of nodes that are gone

    async def _collect_ended(self, node: NodeView) -> None:
        """Pods that nobody is left to end, because somebody vouches for their node being off."""
        if node.ready == "True" or not any(taint["key"] == names.OUT_OF_SERVICE for taint in node.taints):
            return
        for pod in self._pods.by_index("node", node.name):
            if pod.deleting is not None:
                await self._mark(pod, "DeletionByPodGC", "PodGC: node is out-of-service", phase="Failed")
                await self._pods.remove(pod.key, pod.uid, grace=0)

    async def _collect_pods(self, name: str) -> float | None:
        orphans = self._pods.by_index("node", name)
        if not orphans:
            self._signs.pop(name, None)
            return None
        left = self._silent_in(name)
        if left > 0:
            return left
        for pod in orphans if await self._nodes.find(name) is None else ():
            if not pod.terminal:
                await self._mark(pod, "DeletionByPodGC", "PodGC: node no longer exists", phase="Failed")
            await self._pods.remove(pod.key, pod.uid, grace=0)
        return None

    async def _mark(self, pod: Pod, reason: str, message: str, **more: str) -> None:
        """Say on the pod why it goes."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        await self._put_condition(pod, condition, **more)

    async def _put_condition(self, pod: Pod, condition: Obj, **more: str) -> None:
        patch = {"status": {"conditions": [{**condition, "lastTransitionTime": timestamp()}], **more}}
        await self._pods.patch(pod.key, patch, uid=pod.uid, subresource="status")
