"""How long a node is without a ready handler: when it changes its pool, and when its handler is replaced.

VMs run on meanwhile, but nobody reaches their consoles. The proof that comes before is no part of it: the old handler
serves until the new images are known to work. The baseline is the time from the change to its end, proof included.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from bench.node import cluster
from bench.report import Figure
from virtfleet.installation import Installation
from virtfleet.kube import config
from virtfleet.kube.api import Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.client import Client
from virtfleet.kube.resource import KUBEVIRTS, NODES, PODS

TITLE = "handovers: a node without a ready handler"
ROUNDS = 5
DEADLINE = 180.0
POOL_LABEL = "virtfleet.io/bench"
_POOL = {
    "name": "other",
    "nodeSelector": {POOL_LABEL: "other"},
    "selector": {"vmLabels": {"matchLabels": {"pool": "other"}}},
}


class Handlers:
    """Who is ready on the node, and for how long nobody was."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._ready: set[str] = set()
        self._since: float | None = None
        self.gaps: list[float] = []

    def see(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        pod = new or old or {}
        if pod["spec"].get("nodeName") != self._node:
            return
        conditions = (new or {}).get("status", {}).get("conditions") or ()
        alive = new is not None and "deletionTimestamp" not in new["metadata"]
        if alive and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            if not self._ready and self._since is not None:
                self.gaps.append(time.monotonic() - self._since)
            self._ready.add(pod["metadata"]["name"])
        elif pod["metadata"]["name"] in self._ready:
            self._ready.remove(pod["metadata"]["name"])
            self._since = time.monotonic()


async def run() -> list[Figure]:
    if os.geteuid() != 0:
        return []
    with cluster(["a", "b", "c"], "--no-bare") as (data, _):
        async with Client(config.load(data / "kubeconfig")) as api:
            return await measure(api, "a", ROUNDS)


async def measure(api: Client, node: str, rounds: int) -> list[Figure]:
    """On one node of a cluster, whose KubeVirt object and labels are afterwards as they were."""
    handlers, before = Handlers(node), await api.get(KUBEVIRTS, "kubevirt", "kubevirt")
    async with following(api, handlers):
        try:
            await api.patch(KUBEVIRTS, "kubevirt", {"spec": {"configuration": _gates(before)}}, "kubevirt")
            await api.patch(NODES, node, {"metadata": {"labels": {POOL_LABEL: "other"}}})
            pool = {**_POOL, "virtLauncherImage": Installation(before).image("virt-launcher")}
            figures = []
            for name, wishes in (
                ("a pool comes and goes", [{"virtHandlerPools": pools} for pools in ([pool], [])]),
                ("its handler is replaced", [{"workloads": None, "customizeComponents": _flags(i)} for i in (3, 4)]),
            ):
                figures += await _repeat(api, handlers, name, wishes, rounds)
            return figures
        finally:
            await api.patch(NODES, node, {"metadata": {"labels": {POOL_LABEL: None}}})
            whole = [{"op": "replace", "path": "/spec", "value": before["spec"]}]
            await api.patch(KUBEVIRTS, "kubevirt", whole, "kubevirt", how=Patch.JSON)


@asynccontextmanager
async def following(api: Client, handlers: Handlers) -> AsyncIterator[None]:
    pods: Cache[dict[str, Any]] = Cache(
        api, PODS, namespace="kubevirt", labels="kubevirt.io=virt-handler", decode=orjson.loads
    )
    pods.on_change(lambda _key, old, new: handlers.see(old, new))
    watching = asyncio.create_task(pods.run())
    await pods.synced.wait()
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _repeat(
    api: Client, handlers: Handlers, name: str, wishes: list[dict[str, Any]], rounds: int
) -> list[Figure]:
    handlers.gaps, took = [], []
    for number in range(2 * rounds):
        began, known = time.monotonic(), len(handlers.gaps)
        await api.patch(KUBEVIRTS, "kubevirt", {"spec": wishes[number % 2]}, "kubevirt")
        while len(handlers.gaps) == known or not await _settled(api):
            await asyncio.sleep(0.1)
            if time.monotonic() > began + DEADLINE:
                raise TimeoutError(name)
        took.append(time.monotonic() - began)
    gaps = sorted(handlers.gaps)
    baseline = (sorted(took)[len(took) // 2], "from the change to its end")
    return [
        Figure(f"{name}: median", gaps[len(gaps) // 2], "s", *baseline, "2 s at most"),
        Figure(f"{name}: longest", gaps[-1], "s", *baseline),
    ]


def _gates(kubevirt: dict[str, Any]) -> dict[str, Any]:
    developer = (kubevirt["spec"].get("configuration") or {}).get("developerConfiguration") or {}
    return {"developerConfiguration": {"featureGates": [*developer.get("featureGates", ()), "VirtHandlerPools"]}}


def _flags(verbosity: int) -> dict[str, Any]:
    return {"flags": {"handler": {"verbosity": str(verbosity)}}}


async def _settled(api: Client) -> bool:
    kubevirt = await api.get(KUBEVIRTS, "kubevirt", "kubevirt")
    status = kubevirt["status"]
    told = {c["type"]: c["status"] for c in status["conditions"]}
    seen = status["observedGeneration"] == kubevirt["metadata"]["generation"]
    return bool(seen and told["Progressing"] == "False" and told["Available"] == "True")
