"""Controllers may be killed at any time: no pod too many, no volume without its object, and it converges."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from local_cluster import LOCAL_CLASS, Cluster, Kubelets
from test_daemonsets import a_daemon
from test_deployments import a_deployment, image

from virtfleet.kube.api import Patch
from virtfleet.kube.resource import (
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    REPLICA_SETS,
    SERVICES,
    STORAGE_CLASSES,
    Obj,
)


async def restart_at_random(cluster: Cluster, chance: random.Random, times: int) -> None:
    """Kill all controllers after anything between nothing at all and some dozens of turns of the loop."""
    for _ in range(times):
        for _ in range(chance.randrange(120)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.random() * 0.02)
        await cluster.stop()
        cluster.start()


def active(pods: list[Obj]) -> list[Obj]:
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_rollout_survives_restarts_without_a_pod_too_many(
    cluster: Cluster, kubelets: Kubelets, seed: int
) -> None:
    chance = random.Random(seed)
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(active(await cluster.api.list(PODS, "default"))))
            await asyncio.sleep(0)

    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}
    counting = asyncio.create_task(count())
    await cluster.api.create(DEPLOYMENTS, a_deployment(replicas=6, strategy=strategy), "default")
    await restart_at_random(cluster, chance, 6)
    for name in ("two", "three"):
        await cluster.api.patch(DEPLOYMENTS, "web", image(name), "default", how=Patch.STRATEGIC)
        await restart_at_random(cluster, chance, 6)

    async def done() -> bool:
        deployment = await cluster.api.get(DEPLOYMENTS, "web", "default")
        status = deployment["status"]
        pods = await cluster.api.list(PODS, "default")
        return (
            status.get("updatedReplicas") == status.get("availableReplicas") == status.get("replicas") == 6
            and [p["spec"]["containers"][0]["image"] for p in pods] == ["three"] * 6
        )

    await cluster.until(done)
    counting.cancel()
    assert most <= 8
    images = [s["spec"]["template"]["spec"]["containers"][0]["image"] for s in await cluster.api.list(REPLICA_SETS)]
    assert len(images) == len(set(images))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_daemons_stay_one_per_node_through_restarts(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    twice: list[str] = []

    async def look() -> None:
        while True:
            there = Counter(
                p["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                    "nodeSelectorTerms"
                ][0]["matchFields"][0]["values"][0]
                for p in active(await cluster.api.list(PODS, "default"))
            )
            twice.extend(node for node, n in there.items() if n > 1)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    await restart_at_random(cluster, chance, 5)
    await cluster.node("late")
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}
    await cluster.api.patch(DAEMON_SETS, "agent", change, "default", how=Patch.STRATEGIC)
    await restart_at_random(cluster, chance, 5)
    await cluster.api.patch(NODES, "node0", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})
    await restart_at_random(cluster, chance, 5)

    async def done() -> bool:
        pods = await cluster.api.list(PODS, "default")
        where = sorted(p["spec"].get("nodeName", "") for p in pods)
        images = {p["spec"]["containers"][0]["image"] for p in pods}
        return where == ["late", "node1", "node2"] and images == {"two"}

    await cluster.until(done)
    looking.cancel()
    assert not twice


@pytest.mark.parametrize("seed", range(2))
async def test_services_and_volumes_come_out_once(cluster: Cluster, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    await cluster.api.create(STORAGE_CLASSES, LOCAL_CLASS)
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await cluster.api.create(SERVICES, {"metadata": {"name": "web"}, "spec": service}, "default")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    for i in range(4):
        meta = {"metadata": {"name": f"data{i}"}}
        spec = {"storageClassName": "local", **claim}
        await cluster.api.create(PERSISTENT_VOLUME_CLAIMS, {**meta, "spec": spec}, "default")
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"data{i}"}}
        pod = {"containers": [{"name": "c", "image": "x"}], "volumes": [volume]}
        await cluster.api.create(
            PODS, {"metadata": {"name": f"p{i}", "labels": {"app": "web"}}, "spec": pod}, "default"
        )
    await restart_at_random(cluster, chance, 8)

    async def served() -> bool:
        slices = await cluster.api.list(ENDPOINT_SLICES, "default")
        ready = [e for s in slices for e in s.get("endpoints") or () if e["conditions"]["ready"]]
        return len(slices) == 1 and len(ready) == 4

    await cluster.until(served)
    assert len(await cluster.api.list(PERSISTENT_VOLUMES)) == 4
    for i in range(4):
        await cluster.api.delete(PODS, f"p{i}", "default")
        await cluster.api.delete(PERSISTENT_VOLUME_CLAIMS, f"data{i}", "default")
    await restart_at_random(cluster, chance, 8)

    async def nothing_left() -> bool:
        return not await cluster.api.list(PERSISTENT_VOLUMES) and not await cluster.api.list(PODS)

    await cluster.until(nothing_left)
    assert list(cluster.volumes.iterdir()) == []


async def test_a_cluster_at_rest_writes_nothing(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")
    await cluster.api.create(DAEMON_SETS, a_daemon(), "default")
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await cluster.api.create(SERVICES, {"metadata": {"name": "web"}, "spec": service}, "default")

    async def position() -> list[str]:
        kinds = (PODS, DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, SERVICES, ENDPOINT_SLICES, NODES)
        return [o["metadata"]["resourceVersion"] for kind in kinds for o in await cluster.api.list(kind)]

    async def settled() -> bool:
        deployment = await cluster.api.get(DEPLOYMENTS, "web", "default")
        daemon = await cluster.api.get(DAEMON_SETS, "agent", "default")
        return bool(deployment["status"].get("availableReplicas") == 3 and daemon["status"].get("numberAvailable") == 3)

    await cluster.until(settled)
    for _ in range(3):  # by the last restart at the latest, everything has been said
        before = await position()
        await cluster.stop()
        cluster.start()
        await asyncio.sleep(0.5)
    assert await position() == before
