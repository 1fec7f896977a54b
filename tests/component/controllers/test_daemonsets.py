"""Daemon sets: one pod per node, following labels and taints, updated step by step."""

from __future__ import annotations

from typing import Any

import pytest
from local_cluster import Cluster, Kubelets

from virtfleet.kube.api import Patch
from virtfleet.kube.resource import DAEMON_SETS, NODES, PODS, Obj
from virtfleet.local.controllers import daemonset


def a_daemon(**spec: Any) -> Obj:
    labels = {"app": "agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    template["spec"] |= spec.pop("pod", {})
    return {
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def on_nodes(cluster: Cluster, *nodes: str, image: str = "one") -> list[Obj]:
    """Wait until exactly these nodes have a ready pod of the image."""

    async def check() -> list[Obj] | None:
        pods = await cluster.api.list(PODS, "default")
        status = (await cluster.api.get(DAEMON_SETS, "agent", "default")).get("status", {})
        good = sorted(p["spec"].get("nodeName", "") for p in pods) == sorted(nodes) and all(
            p["spec"]["containers"][0]["image"] == image for p in pods
        )
        return pods if good and status.get("numberReady") == len(nodes) else None

    found: list[Obj] = await cluster.until(check)
    return found


async def set_image(cluster: Cluster, name: str) -> None:
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}
    await cluster.api.patch(DAEMON_SETS, "agent", change, "default", how=Patch.STRATEGIC)


async def test_every_node_gets_one_pod_new_nodes_too_and_the_status_counts_them(cluster: Cluster) -> None:
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    await on_nodes(cluster, "node0", "node1", "node2")
    await cluster.node("late")
    pods = await on_nodes(cluster, "node0", "node1", "node2", "late")
    affinity = {p["spec"]["nodeName"]: p["spec"]["affinity"]["nodeAffinity"] for p in pods}["late"]
    term = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["late"]}]}
    status = (await cluster.api.get(DAEMON_SETS, "agent", "default"))["status"]
    assert status["desiredNumberScheduled"] == status["currentNumberScheduled"] == 4
    assert status["updatedNumberScheduled"] == status["numberAvailable"] == 4
    assert status["observedGeneration"] == 1


async def test_pods_follow_the_labels_of_nodes(cluster: Cluster) -> None:
    await cluster.api.create(DAEMON_SETS, a_daemon(pod={"nodeSelector": {"pool": "gpu"}}), "default")
    await cluster.api.patch(NODES, "node1", {"metadata": {"labels": {"pool": "gpu"}}})
    await on_nodes(cluster, "node1")
    await cluster.api.patch(NODES, "node1", {"metadata": {"labels": {"pool": None}}})
    await cluster.api.patch(NODES, "node2", {"metadata": {"labels": {"pool": "gpu"}}})
    await on_nodes(cluster, "node2")


async def test_a_taint_that_executes_ends_the_pod_and_a_cordon_does_not(cluster: Cluster) -> None:
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    await on_nodes(cluster, "node0", "node1", "node2")
    taint = {"key": "broken", "effect": "NoExecute"}
    await cluster.api.patch(NODES, "node0", {"spec": {"taints": [taint]}})
    await cluster.api.patch(NODES, "node1", {"spec": {"unschedulable": True}})
    await on_nodes(cluster, "node1", "node2")
    await cluster.api.patch(NODES, "node0", {"spec": {"taints": []}})
    await on_nodes(cluster, "node0", "node1", "node2")


async def test_an_update_goes_node_by_node_and_waits_for_the_new_pod(cluster: Cluster, kubelets: Kubelets) -> None:
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    await on_nodes(cluster, "node0", "node1", "node2")
    old = {p["metadata"]["name"] for p in await cluster.api.list(PODS, "default")}
    kubelets.healthy = lambda pod: pod.name in old
    await set_image(cluster, "two")

    async def one_replaced() -> bool:
        pods = await cluster.api.list(PODS, "default")
        images = sorted(p["spec"]["containers"][0]["image"] for p in pods if p["status"].get("phase") == "Running")
        return images == ["one", "one", "two"]

    await cluster.until(one_replaced)
    status = (await cluster.api.get(DAEMON_SETS, "agent", "default"))["status"]
    assert status["numberUnavailable"] <= 1
    kubelets.healthy = lambda pod: True
    kubelets.look_again()
    await on_nodes(cluster, "node0", "node1", "node2", image="two")


async def test_on_delete_replaces_pods_only_when_somebody_deletes_them(cluster: Cluster) -> None:
    await cluster.api.create(DAEMON_SETS, a_daemon(updateStrategy={"type": "OnDelete"}), "default")
    pods = await on_nodes(cluster, "node0", "node1", "node2")
    await set_image(cluster, "two")

    async def observed() -> bool:
        daemon = await cluster.api.get(DAEMON_SETS, "agent", "default")
        status = daemon["status"]
        return bool(status.get("observedGeneration") == 2 and status["updatedNumberScheduled"] == 0)

    await cluster.until(observed)
    for pod in pods:
        await cluster.api.delete(PODS, pod["metadata"]["name"], "default")
    await on_nodes(cluster, "node0", "node1", "node2", image="two")


async def test_a_failed_pod_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemonset, "RETRY", 1.0)
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    pods = await on_nodes(cluster, "node0", "node1", "node2")
    name = pods[0]["metadata"]["name"]
    await cluster.api.patch(PODS, name, {"status": {"phase": "Failed"}}, "default", subresource="status")
    await cluster.gone(PODS, name)
    await on_nodes(cluster, "node0", "node1", "node2")
