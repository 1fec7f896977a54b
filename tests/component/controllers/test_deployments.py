"""Deployments and replica sets against the real API server's rules."""

from __future__ import annotations

import asyncio
from typing import Any

from local_cluster import Cluster, Kubelets

from virtfleet.kube.api import Patch
from virtfleet.kube.resource import DEPLOYMENTS, EVENTS, PODS, REPLICA_SETS, Obj

REVISION = "deployment.kubernetes.io/revision"


def a_deployment(name: str = "web", replicas: int = 3, image: str = "one", **spec: Any) -> Obj:
    labels = {"app": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}},
            **spec,
        },
    }


def image(name: str) -> Obj:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}


async def patch(cluster: Cluster, change: Obj) -> None:
    await cluster.api.patch(DEPLOYMENTS, "web", change, "default", how=Patch.STRATEGIC)


async def rolled_out(cluster: Cluster, image_name: str, replicas: int = 3) -> Obj:
    """Wait until the deployment says that it is done and the pods are what it says."""

    async def check() -> Obj | None:
        deployment = await cluster.api.get(DEPLOYMENTS, "web", "default")
        status = deployment.get("status", {})
        pods = [p for p in await cluster.api.list(PODS, "default") if "deletionTimestamp" not in p["metadata"]]
        done = (
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and status.get("availableReplicas") == status.get("updatedReplicas") == status.get("replicas") == replicas
            and [p["spec"]["containers"][0]["image"] for p in pods] == [image_name] * replicas
        )
        return deployment if done else None

    found: Obj = await cluster.until(check)
    return found


def condition(obj: Obj, kind: str) -> Obj:
    return next((c for c in obj["status"].get("conditions", []) if c["type"] == kind), {})


async def test_a_deployment_gets_its_pods_and_says_so(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")
    deployment = await rolled_out(cluster, "one")
    assert condition(deployment, "Available")["reason"] == "MinimumReplicasAvailable"
    assert deployment["metadata"]["annotations"][REVISION] == "1"

    async def done() -> bool:
        live = await cluster.api.get(DEPLOYMENTS, "web", "default")
        return condition(live, "Progressing").get("reason") == "NewReplicaSetAvailable"

    await cluster.until(done)
    (replica_set,) = await cluster.api.list(REPLICA_SETS, "default")
    name = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{name}"
    for pod in await cluster.api.list(PODS, "default"):
        assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": name}
        assert pod["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"]


async def test_a_rolling_update_stays_within_surge_and_availability(cluster: Cluster) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    await cluster.api.create(DEPLOYMENTS, a_deployment(replicas=5, strategy=strategy), "default")
    await rolled_out(cluster, "one", 5)
    seen: list[tuple[int, int]] = []

    async def look() -> None:
        while True:
            sets = await cluster.api.list(REPLICA_SETS, "default")
            pods = [p for p in await cluster.api.list(PODS, "default") if "deletionTimestamp" not in p["metadata"]]
            ready = [p for p in pods if any(c["type"] == "Ready" and c["status"] == "True" for c in _conditions(p))]
            seen.append((sum(s["spec"]["replicas"] for s in sets), len(ready)))
            await asyncio.sleep(0)

    watching = asyncio.create_task(look())
    await patch(cluster, image("two"))
    await rolled_out(cluster, "two", 5)
    watching.cancel()
    assert max(total for total, _ in seen) <= 6
    assert min(ready for _, ready in seen) >= 4


def _conditions(obj: Obj) -> list[Obj]:
    found: list[Obj] = obj.get("status", {}).get("conditions") or []
    return found


async def test_going_back_to_an_earlier_template_takes_its_replica_set_again(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")
    await rolled_out(cluster, "one")
    await patch(cluster, image("two"))
    await rolled_out(cluster, "two")
    await patch(cluster, image("one"))
    deployment = await rolled_out(cluster, "one")
    assert deployment["metadata"]["annotations"][REVISION] == "3"
    sets = {s["spec"]["template"]["spec"]["containers"][0]["image"]: s for s in await cluster.api.list(REPLICA_SETS)}
    assert sets.keys() == {"one", "two"}
    assert sets["one"]["metadata"]["annotations"][REVISION] == "3"


async def test_history_beyond_its_limit_is_forgotten(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(replicas=1, revisionHistoryLimit=1), "default")
    await rolled_out(cluster, "one", 1)
    for name in ("two", "three", "four"):
        await patch(cluster, image(name))
        await rolled_out(cluster, name, 1)

    async def images() -> bool:
        sets = await cluster.api.list(REPLICA_SETS, "default")
        return sorted(s["spec"]["template"]["spec"]["containers"][0]["image"] for s in sets) == ["four", "three"]

    await cluster.until(images)


async def test_a_paused_deployment_scales_but_does_not_roll_out(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")
    await rolled_out(cluster, "one")
    await patch(cluster, {"spec": {"paused": True, "replicas": 5}})
    await patch(cluster, image("two"))
    paused = await cluster.until(lambda: _says(cluster, "DeploymentPaused"))
    assert condition(paused, "Progressing")["status"] == "Unknown"

    async def five() -> bool:
        pods = await cluster.api.list(PODS, "default")
        return [p["spec"]["containers"][0]["image"] for p in pods] == ["one"] * 5

    await cluster.until(five)
    await patch(cluster, {"spec": {"paused": False}})
    await rolled_out(cluster, "two", 5)


async def _says(cluster: Cluster, reason: str) -> Obj | None:
    deployment = await cluster.api.get(DEPLOYMENTS, "web", "default")
    return deployment if condition(deployment, "Progressing").get("reason") == reason else None


async def test_recreate_lets_no_new_pod_start_before_the_last_old_one_is_gone(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(strategy={"type": "Recreate"}), "default")
    await rolled_out(cluster, "one")
    mixed = []

    async def look() -> None:
        while True:
            images = {p["spec"]["containers"][0]["image"] for p in await cluster.api.list(PODS, "default")}
            if len(images) > 1:
                mixed.append(images)
            await asyncio.sleep(0)

    watching = asyncio.create_task(look())
    await patch(cluster, image("two"))
    await rolled_out(cluster, "two")
    watching.cancel()
    assert not mixed


async def test_scaling_down_takes_unready_pods_first(cluster: Cluster, kubelets: Kubelets) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(replicas=4), "default")
    await rolled_out(cluster, "one", 4)
    sick = {p["metadata"]["name"] for p in (await cluster.api.list(PODS, "default"))[:2]}
    kubelets.healthy = lambda pod: pod.name not in sick
    kubelets.look_again()

    async def two_ready() -> bool:
        deployment = await cluster.api.get(DEPLOYMENTS, "web", "default")
        return bool(deployment["status"].get("readyReplicas") == 2)

    await cluster.until(two_ready)
    await cluster.api.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 2}}, "default", subresource="scale")
    await rolled_out(cluster, "one", 2)
    assert not sick & {p["metadata"]["name"] for p in await cluster.api.list(PODS, "default")}


async def test_what_cannot_be_created_is_said_on_the_set_and_on_the_deployment(cluster: Cluster) -> None:
    deployment = a_deployment()
    deployment["spec"]["template"]["spec"]["serviceAccountName"] = "missing"
    await cluster.api.create(DEPLOYMENTS, deployment, "default")

    async def failed() -> bool:
        live = await cluster.api.get(DEPLOYMENTS, "web", "default")
        failure = condition(live, "ReplicaFailure")
        return failure.get("reason") == "FailedCreate" and "missing" in failure["message"]

    await cluster.until(failed)

    async def told() -> bool:
        events = await cluster.api.list(EVENTS, "default")
        return any(e["reason"] == "FailedCreate" for e in events)

    await cluster.until(told)


async def test_a_set_of_its_name_that_is_somebody_elses_is_left_alone(cluster: Cluster) -> None:
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")
    await rolled_out(cluster, "one")
    await cluster.api.delete(DEPLOYMENTS, "web", "default", propagation="Orphan")
    await cluster.gone(DEPLOYMENTS, "web")
    (orphan,) = await cluster.api.list(REPLICA_SETS, "default")
    await cluster.api.create(DEPLOYMENTS, a_deployment(), "default")

    async def both() -> bool:
        sets = await cluster.api.list(REPLICA_SETS, "default")
        return [(s.get("status") or {}).get("availableReplicas") for s in sets] == [3, 3]

    await cluster.until(both)
    assert not (await cluster.api.get(REPLICA_SETS, orphan["metadata"]["name"], "default"))["metadata"].get(
        "ownerReferences"
    )
