"""Nodes that fall silent, come back, or are removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from local_cluster import Cluster, Kubelets

from virtfleet.api.times import timestamp
from virtfleet.kube.resource import LEASES, NAMESPACES, NODES, PODS, Obj
from virtfleet.local.controllers import nodes, pods
from virtfleet.local.controllers.nodelifecycle import eviction_time, taints

UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"


@asynccontextmanager
async def leases(cluster: Cluster, *names: str) -> AsyncIterator[None]:
    """Renew the leases of these nodes all the time."""

    async def renew() -> None:
        while True:
            for name in names:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                await cluster.api.patch(LEASES, name, {"spec": {"renewTime": now}}, "kube-node-lease")
            await asyncio.sleep(0.1)

    await cluster.api.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
    for name in names:
        await cluster.api.create(LEASES, {"metadata": {"name": name}, "spec": {}}, "kube-node-lease")
    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()


async def create_pod(cluster: Cluster, name: str, node: str, **spec: Any) -> None:
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}], "nodeName": node, **spec}}
    await cluster.api.create(PODS, pod, "default")


async def restart_with_grace(cluster: Cluster, grace: float) -> None:
    await cluster.stop()
    cluster.node_grace = grace
    cluster.start()


def ready(obj: Obj) -> str:
    listed = obj.get("status", {}).get("conditions") or []
    return next((str(c["status"]) for c in listed if c["type"] == "Ready"), "")


async def test_a_silent_node_becomes_unknown_and_its_pods_leave_when_they_may_not_stay(cluster: Cluster) -> None:
    tolerant = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    await create_pod(cluster, "leaves", "node0", tolerations=[{**tolerant, "tolerationSeconds": 0}])
    await create_pod(cluster, "stays", "node0", tolerations=[tolerant])
    await create_pod(cluster, "elsewhere", "node1")

    async def all_ready() -> bool:
        return all(ready(p) == "True" for p in await cluster.api.list(PODS, "default"))

    await cluster.until(all_ready)
    async with leases(cluster, "node1", "node2"):
        await restart_with_grace(cluster, 1.0)

        async def silent() -> bool:
            node = await cluster.api.get(NODES, "node0")
            effects = {t["effect"] for t in node["spec"].get("taints", []) if t["key"] == UNREACHABLE}
            return ready(node) == "Unknown" and effects == {"NoSchedule", "NoExecute"}

        await cluster.until(silent)
        await cluster.gone(PODS, "leaves")
        node = await cluster.api.get(NODES, "node0")
        condition = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
        assert (condition["reason"], condition["message"]) == (
            "NodeStatusUnknown",
            "Kubelet stopped posting node status.",
        )
        assert await cluster.api.get(PODS, "stays", "default")
        for name in ("node1", "node2"):
            assert ready(await cluster.api.get(NODES, name)) == "True"
        assert ready(await cluster.api.get(PODS, "elsewhere", "default")) == "True"


async def test_a_node_that_reports_again_loses_its_taints(cluster: Cluster) -> None:
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    conditions = [{"type": "Ready", "status": "False", "lastHeartbeatTime": timestamp()}]
    await cluster.api.patch(NODES, "node0", {"spec": {"taints": [theirs]}})
    await cluster.api.patch(NODES, "node0", {"status": {"conditions": conditions}}, subresource="status")

    async def tainted() -> bool:
        found = (await cluster.api.get(NODES, "node0"))["spec"].get("taints", [])
        return sorted((t["key"], t["effect"]) for t in found) == [
            (NOT_READY, "NoExecute"),
            (NOT_READY, "NoSchedule"),
            ("theirs", "NoSchedule"),
        ]

    await cluster.until(tainted)
    conditions[0]["status"] = "True"
    await cluster.api.patch(NODES, "node0", {"status": {"conditions": conditions}}, subresource="status")

    async def clean() -> bool:
        return bool((await cluster.api.get(NODES, "node0"))["spec"]["taints"] == [theirs])

    await cluster.until(clean)


async def test_a_cordon_is_a_taint(cluster: Cluster) -> None:
    await cluster.api.patch(NODES, "node0", {"spec": {"unschedulable": True}})

    async def cordoned() -> bool:
        found = (await cluster.api.get(NODES, "node0"))["spec"].get("taints", [])
        return [(t["key"], t["effect"]) for t in found] == [("node.kubernetes.io/unschedulable", "NoSchedule")]

    await cluster.until(cordoned)


async def test_pods_of_a_node_that_is_gone_are_collected(cluster: Cluster) -> None:
    await create_pod(cluster, "orphan", "node0")
    await create_pod(cluster, "fine", "node1")
    async with leases(cluster, "node1", "node2"):
        await restart_with_grace(cluster, 1.0)
        await cluster.api.delete(NODES, "node0")
        await cluster.gone(PODS, "orphan")
    assert await cluster.api.get(PODS, "fine", "default")


def a_node(status: str, *present: Obj, **spec: Any) -> nodes.NodeView:
    listed = [{"type": "Ready", "status": status}] if status else []
    obj = {"metadata": {"name": "n"}, "spec": {"taints": list(present), **spec}, "status": {"conditions": listed}}
    return nodes.decode(orjson.dumps(obj))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("True", []),
        ("False", [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        ("Unknown", [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        ("", [(NOT_READY, "NoSchedule")]),
    ],
)
def test_taints_follow_the_ready_condition(status: str, expected: list[tuple[str, str]]) -> None:
    assert [(t["key"], t["effect"]) for t in taints(a_node(status), 0.0)] == expected


def test_a_taint_keeps_the_time_at_which_it_came() -> None:
    first = taints(a_node("Unknown"), 1000.0)
    assert taints(a_node("Unknown", *first), 2000.0) == first


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], 0.0),
        ([{"operator": "Exists"}], None),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}], 1300.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": -5}], 1000.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}, {"operator": "Exists"}], None),
    ],
)
def test_how_long_a_pod_may_stay_on_a_tainted_node(tolerations: list[Obj], expected: float | None) -> None:
    pod = pods.decode(orjson.dumps({"metadata": {"name": "p"}, "spec": {"tolerations": tolerations}}))
    taint = {"key": "k", "effect": "NoExecute", "timeAdded": timestamp(1000)}
    assert eviction_time(pod, [taint, {"key": "soft", "effect": "NoSchedule"}]) == expected


async def test_pods_are_given_up_when_somebody_vouches_for_their_node_being_off(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    """Not before, and not those that put up with it."""
    kubelets.dead.add("node0")
    for name in ("asked-to-end", "runs"):
        await create_pod(cluster, name, "node0")
    await create_pod(cluster, "tolerates", "node0", tolerations=[{"operator": "Exists"}])
    unknown = [{"type": "Ready", "status": "Unknown", "lastHeartbeatTime": timestamp()}]
    await cluster.api.patch(NODES, "node0", {"status": {"conditions": unknown}}, subresource="status")
    await cluster.api.delete(PODS, "asked-to-end", "default")

    async def tainted() -> Obj | None:
        node = await cluster.api.get(NODES, "node0")
        return node if any(t["key"] == UNREACHABLE for t in node["spec"].get("taints", ())) else None

    await cluster.until(tainted)
    assert (await cluster.api.get(PODS, "asked-to-end", "default"))["metadata"]["deletionTimestamp"]
    fence = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}

    async def fenced() -> Obj:
        node = await cluster.api.get(NODES, "node0")
        return await cluster.api.replace(NODES, {**node, "spec": {"taints": [*node["spec"]["taints"], fence]}})

    await cluster.until(fenced)
    for name in ("asked-to-end", "runs"):
        await cluster.gone(PODS, name)
    assert "deletionTimestamp" not in (await cluster.api.get(PODS, "tolerates", "default"))["metadata"]
