"""Watches the handlers of a cluster while a test changes things: who serves each node, at every moment."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Self

import orjson

from virtfleet.kube import config
from virtfleet.kube.cache import Cache
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    alive = "deletionTimestamp" not in pod["metadata"]
    return alive and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


class HandlerWatch:
    """A context, within which every change of a handler's Pod is looked at.

    `doubles` are moments in which a node had two Ready handlers, `gaps` the longest time that each node had none.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._ready: dict[str, set[str]] = {}  # node -> Ready handlers
        self._alone: dict[str, float] = {}  # node -> since when it has none
        self._synced, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()))
        self.doubles: list[str] = []
        self.gaps: dict[str, float] = {}
        self.handovers = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._synced.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for node, since in self._alone.items():
            self._close_gap(node, since)

    async def _watch(self) -> None:
        async with Client(config.load(self._kubeconfig)) as api:
            pods: Cache[dict[str, Any]] = Cache(
                api, PODS, namespace="kubevirt", labels="kubevirt.io=virt-handler", decode=orjson.loads
            )
            pods.on_change(lambda _key, old, new: self._see(old, new))
            running = asyncio.create_task(pods.run())
            await pods.synced.wait()
            self._synced.set()
            await asyncio.to_thread(self._stop.wait)
            running.cancel()
            await asyncio.wait([running])

    def _see(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        pod = new or old or {}
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if not node:
            return
        ready = self._ready.setdefault(node, set())
        if new is not None and is_ready(new):
            if name not in ready:
                self.handovers += 1
            ready.add(name)
            if len(ready) > 1:
                self.doubles.append(f"{node}: {sorted(ready)}")
            if node in self._alone:
                self._close_gap(node, self._alone.pop(node))
        else:
            ready.discard(name)
            if not ready:
                self._alone.setdefault(node, time.monotonic())

    def _close_gap(self, node: str, since: float) -> None:
        self.gaps[node] = max(self.gaps.get(node, 0.0), time.monotonic() - since)
