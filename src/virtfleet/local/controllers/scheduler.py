"""Gives pods their nodes.

Every pod without a node is a key in the queue. A pod that fits nowhere says so in its PodScheduled condition and in an
event, and waits until something changed that could help: a node, the end of another pod, a claim.
"""

from __future__ import annotations

import asyncio
from typing import Any

from virtfleet.api.times import timestamp
from virtfleet.kube.cache import Cache, key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import is_conflict, is_not_found
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.claims import SELECTED_NODE, constraints, selected_node
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.placement import Book, place
from virtfleet.local.controllers.pods import Pod

NAME = "default-scheduler"
# Seconds until waiting pods are tried again after a change, so that many changes in a row wake them once; and a little
# more for each of them, so that thousands which fit nowhere do not keep the process busy.
WAKE_AFTER, WAKE_AFTER_EACH = 0.05, 0.0005
WORKERS = 64  # bindings under way at the same time; they share the store's commits
LOOK_AGAIN = 60.0  # seconds until an unschedulable pod is tried even though nothing seems to have changed


class Scheduler:
    """One pod at a time decides, many bind at the same time."""

    def __init__(self, caches: Caches) -> None:
        self._caches, self._api, self._pods = caches, caches.api, caches.pods
        self._recorder = caches.recorder(NAME)
        self._book = Book(self._labels)
        self._waiting: set[str] = set()  # keys of pods that fit nowhere, or whose claims are on their way
        self._bound: set[str] = set()  # uids of pods that are bound though the cache does not show it yet
        self._waking: asyncio.TimerHandle | None = None
        storage = [caches.claims, caches.volumes, caches.classes]
        needed: list[Cache[Any]] = [caches.pods, caches.nodes, caches.namespaces, *storage]
        self.controller = Controller("scheduler", self.reconcile, needed, workers=WORKERS)
        caches.nodes.on_change(self._node_changed)
        caches.pods.on_change(self._pod_changed)
        for cache in storage:
            cache.on_change(lambda _key, _old, _new: self._wake())

    # -- keeping the book

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        if new is None:
            self._book.node_gone(name)
            return
        self._book.node_seen(new)
        if old is None or _offers(old) != _offers(new):
            self._wake()

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.terminal:
            for pod in filter(None, (old, new)):
                self._book.leave(pod.uid)
                self._bound.discard(pod.uid)
            self._waiting.discard(key)
            if old and old.node:
                self._wake()
        elif new.node:
            self._book.enter(new, new.node)
            self._bound.discard(new.uid)
        else:
            self.controller.queue.add(key)

    def _labels(self, namespace: str) -> dict[str, str] | None:
        known = self._caches.namespaces.get(namespace)
        return known and known["metadata"].get("labels")

    def _wake(self) -> None:
        """Try all waiting pods again soon."""
        if self._waiting and self._waking is None:
            delay = WAKE_AFTER + WAKE_AFTER_EACH * len(self._waiting)
            self._waking = asyncio.get_running_loop().call_later(delay, self._woken)

    def _woken(self) -> None:
        self._waking = None
        for key in sorted(self._waiting):
            self.controller.queue.add(key)

    # -- scheduling

    async def reconcile(self, key: str) -> float | None:
        """Find a node for the pod and bind it there."""
        pod = self._pods.get(key)
        if pod is None or pod.node or not pod.active or pod.uid in self._bound:
            self._waiting.discard(key)
            return None
        if pod.template.gated or pod.template.scheduler != NAME:
            return None
        self._book.leave(pod.uid)  # a room that was kept for it while its claims were bound
        allowed, waiting = constraints(pod, self._caches)
        placement = place(pod, self._book, allowed)
        if not placement.node:
            await self._say_why(pod, placement.message)
            return LOOK_AGAIN
        self._book.enter(pod, placement.node)
        if waiting:
            self._waiting.add(key)
            await self._announce(waiting, placement.node)
            return LOOK_AGAIN
        await self._bind(pod, placement.node)
        self._waiting.discard(key)
        return None

    async def _announce(self, claims: list[Obj], node: str) -> None:
        """Tell the volume controller on which node the claims are needed; the bound claims bring the pod back."""
        for claim in claims:
            if selected_node(claim) != node:
                await self._caches.claims.patch(key_of(claim), {"metadata": {"annotations": {SELECTED_NODE: node}}})

    async def _bind(self, pod: Pod, node: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._bound.add(pod.uid)
        try:
            await self._api.create(PODS, binding, pod.namespace, name=pod.name, subresource="binding")
        except Exception as error:
            self._bound.discard(pod.uid)
            self._book.leave(pod.uid)
            if is_not_found(error) or is_conflict(error):  # gone, or bound by somebody else: the cache will show it
                return
            raise
        self._recorder.normal(pod.reference, "Scheduled", f"Successfully assigned {pod.key} to {node}")

    async def _say_why(self, pod: Pod, message: str) -> None:
        self._waiting.add(pod.key)
        if pod.unschedulable == message:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        condition |= {} if pod.unschedulable else {"lastTransitionTime": timestamp()}
        patch = {"status": {"conditions": [condition]}}
        await self._pods.patch(pod.key, patch, uid=pod.uid, subresource="status")
        self._recorder.warning(pod.reference, "FailedScheduling", message)


def _offers(node: NodeView) -> tuple[object, ...]:
    """What of a node decides whether pods fit."""
    return node.labels, node.taints, node.unschedulable, node.allocatable
