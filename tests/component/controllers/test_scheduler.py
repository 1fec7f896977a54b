"""The scheduler at work: bindings, pods that have to wait, and what they say meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from local_cluster import Cluster

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import EVENTS, NODES, PODS, Obj


async def create(cluster: Cluster, name: str, requests: dict[str, str] | None = None, **spec: Any) -> None:
    container = {"name": "c", "image": "x", "resources": {"requests": requests or {}}}
    await cluster.api.create(PODS, {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}, "default")


async def scheduled(cluster: Cluster, name: str) -> Obj:
    async def check() -> Obj | None:
        pod = await cluster.api.get(PODS, name, "default")
        return pod if pod["spec"].get("nodeName") else None

    found: Obj = await cluster.until(check)
    return found


async def waiting(cluster: Cluster, name: str, message: str) -> Obj:
    async def check() -> Obj | None:
        pod = await cluster.api.get(PODS, name, "default")
        condition: Obj = next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})
        return condition if message in condition.get("message", "") else None

    found: Obj = await cluster.until(check)
    return found


async def test_a_pod_gets_a_node_and_a_condition_in_one_write(cluster: Cluster) -> None:
    await create(cluster, "p", {"cpu": "1"})
    pod = await scheduled(cluster, "p")
    (condition,) = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert condition["status"] == "True"
    assert condition["lastTransitionTime"]


async def test_a_pod_that_fits_nowhere_says_why_and_goes_as_soon_as_it_can(cluster: Cluster) -> None:
    await create(cluster, "p", {"cpu": "12"})
    condition = await waiting(cluster, "p", "Insufficient cpu")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["message"] == "0/3 nodes are available: 3 Insufficient cpu."

    async def told() -> bool:
        events = await cluster.api.list(EVENTS, "default")
        return any(e["reason"] == "FailedScheduling" and e["message"] == condition["message"] for e in events)

    await cluster.until(told)
    await cluster.node("big", allocatable={"cpu": "16"})
    pod = await scheduled(cluster, "p")
    assert pod["spec"]["nodeName"] == "big"


async def test_room_that_a_pod_leaves_goes_to_the_one_that_waits(cluster: Cluster) -> None:
    for i in range(3):
        await create(cluster, f"full{i}", {"cpu": "6"})
        await scheduled(cluster, f"full{i}")
    await create(cluster, "p", {"cpu": "6"})
    await waiting(cluster, "p", "3 Insufficient cpu")
    await cluster.api.delete(PODS, "full1", "default")
    await scheduled(cluster, "p")


async def test_the_condition_changes_its_time_only_once_and_its_message_with_the_nodes(cluster: Cluster) -> None:
    await create(cluster, "p", nodeSelector={"pool": "gpu"})
    first = await waiting(cluster, "p", "3 node(s) didn't match Pod's node affinity/selector")
    await cluster.api.patch(NODES, "node0", {"spec": {"unschedulable": True}})
    second = await waiting(cluster, "p", "1 node(s) were unschedulable")
    assert second["lastTransitionTime"] == first["lastTransitionTime"]
    await cluster.api.patch(NODES, "node1", {"metadata": {"labels": {"pool": "gpu"}}})
    assert (await scheduled(cluster, "p"))["spec"]["nodeName"] == "node1"


async def test_many_pods_fill_the_nodes_exactly(cluster: Cluster) -> None:
    for i in range(30):
        await create(cluster, f"p{i}", {"cpu": "1"})

    async def full() -> Counter[str] | None:
        pods = await cluster.api.list(PODS, "default")
        nodes = Counter(p["spec"].get("nodeName", "") for p in pods)
        unschedulable = [
            p
            for p in pods
            if any(c["type"] == "PodScheduled" and c["status"] == "False" for c in p["status"].get("conditions", []))
        ]
        return nodes if len(unschedulable) == nodes[""] == 6 else None

    assert await cluster.until(full) == {"node0": 8, "node1": 8, "node2": 8, "": 6}


async def test_pods_of_another_scheduler_and_gated_pods_are_left_alone(cluster: Cluster) -> None:
    await create(cluster, "theirs", schedulerName="mine")
    await create(cluster, "gated", schedulingGates=[{"name": "wait"}])
    await create(cluster, "p")
    await scheduled(cluster, "p")
    for name in ("theirs", "gated"):
        assert "nodeName" not in (await cluster.api.get(PODS, name, "default"))["spec"]
    await cluster.api.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, "default")
    await scheduled(cluster, "gated")


async def bind(cluster: Cluster, pod: str, node: str, **meta: str) -> None:
    binding = {"metadata": {"name": pod, **meta}, "target": {"kind": "Node", "name": node}}
    await cluster.api.create(PODS, binding, "default", name=pod, subresource="binding")


async def test_a_pod_is_bound_once(cluster: Cluster) -> None:
    await create(cluster, "p", schedulerName="mine")
    with pytest.raises(ApiError) as stale:
        await bind(cluster, "p", "node0", uid="another")
    assert stale.value.reason == "Conflict"
    await bind(cluster, "p", "node0")
    with pytest.raises(ApiError) as refused:
        await bind(cluster, "p", "node1")
    assert refused.value.code == 409
    assert refused.value.message == (
        'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "node0"'
    )


async def test_nobody_else_gives_a_pod_its_node(cluster: Cluster) -> None:
    await create(cluster, "p", schedulerName="mine")
    with pytest.raises(ApiError) as refused:
        await cluster.api.patch(PODS, "p", {"spec": {"nodeName": "node0"}}, "default")
    assert refused.value.reason == "Invalid"
