"""Disruption budgets and evictions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from local_cluster import Cluster, Kubelets

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS, Obj


async def create_set(cluster: Cluster, replicas: int = 3) -> list[str]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    await cluster.api.create(REPLICA_SETS, {"metadata": {"name": "web"}, "spec": spec}, "default")

    async def ready() -> list[str] | None:
        status = (await cluster.api.get(REPLICA_SETS, "web", "default")).get("status", {})
        pods = await cluster.api.list(PODS, "default")
        return [p["metadata"]["name"] for p in pods] if status.get("readyReplicas") == replicas else None

    found: list[str] = await cluster.until(ready)
    return found


async def create_budget(cluster: Cluster, **spec: Any) -> None:
    spec = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    await cluster.api.create(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "web"}, "spec": spec}, "default")


async def budget_is(cluster: Cluster, **numbers: int) -> Obj:
    async def check() -> Obj | None:
        budget = await cluster.api.get(POD_DISRUPTION_BUDGETS, "web", "default")
        status = budget.get("status", {})
        return budget if numbers.items() <= status.items() else None

    found: Obj = await cluster.until(check)
    return found


async def evict(cluster: Cluster, pod: str) -> None:
    await cluster.api.create(PODS, {"metadata": {"name": pod}}, "default", name=pod, subresource="eviction")


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": 1}, 2, 1),
        ({"maxUnavailable": "100%"}, 0, 3),
        ({"minAvailable": 5}, 5, 0),
    ],
)
async def test_a_budget_counts_what_it_allows(cluster: Cluster, spec: Obj, desired: int, allowed: int) -> None:
    await create_set(cluster)
    await create_budget(cluster, **spec)
    budget = await budget_is(
        cluster, expectedPods=3, currentHealthy=3, desiredHealthy=desired, disruptionsAllowed=allowed
    )
    (condition,) = budget["status"]["conditions"]
    assert condition["reason"] == ("SufficientPods" if allowed else "InsufficientPods")


async def test_an_eviction_beyond_the_budget_is_refused_as_kubernetes_refuses_it(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    pods = await create_set(cluster)
    await create_budget(cluster, minAvailable=3)
    await budget_is(cluster, disruptionsAllowed=0, currentHealthy=3)
    with pytest.raises(ApiError) as refused:
        await evict(cluster, pods[0])
    assert (refused.value.code, refused.value.reason) == (429, "TooManyRequests")
    assert refused.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.value.details == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 3 healthy pods and has 3 currently",
            }
        ]
    }


async def test_of_many_evictions_at_once_only_as_many_succeed_as_the_budget_allows(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    pods = await create_set(cluster, 6)
    await create_budget(cluster, maxUnavailable=2)
    await budget_is(cluster, disruptionsAllowed=2)
    await cluster.stop()  # no controller counts again, and nobody replaces pods
    results = await asyncio.gather(*(evict(cluster, pod) for pod in pods), return_exceptions=True)
    assert sorted(type(r).__name__ for r in results) == ["ApiError"] * 4 + ["NoneType"] * 2
    assert {r.code for r in results if isinstance(r, ApiError)} == {429}


async def test_a_drained_set_loses_its_pods_one_after_the_other(cluster: Cluster) -> None:
    pods = await create_set(cluster)
    await create_budget(cluster, minAvailable=2)
    for pod in pods:

        async def evicted(pod: str = pod) -> bool:
            await evict(cluster, pod)
            return True

        await budget_is(cluster, disruptionsAllowed=1)
        await cluster.until(evicted)
        await cluster.gone(PODS, pod)
    await budget_is(cluster, currentHealthy=3, disruptionsAllowed=1)


async def test_pods_without_a_budget_and_pods_that_do_not_run_go_at_once(cluster: Cluster) -> None:
    await create_budget(cluster, minAvailable=3)
    pod: Obj = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    await cluster.api.create(PODS, {"metadata": {"name": "free"}, **pod}, "default")
    pod["spec"]["schedulerName"] = "nobody"
    await cluster.api.create(PODS, {"metadata": {"name": "pending", "labels": {"app": "web"}}, **pod}, "default")
    await budget_is(cluster, disruptionsAllowed=0, expectedPods=1)
    for name in ("free", "pending"):
        await evict(cluster, name)
        await cluster.gone(PODS, name)


async def test_an_unready_pod_of_a_satisfied_budget_may_go(cluster: Cluster, kubelets: Kubelets) -> None:
    pods = await create_set(cluster)
    await create_budget(cluster, minAvailable=2)
    kubelets.healthy = lambda pod: pod.name != pods[0]
    kubelets.look_again()
    await budget_is(cluster, currentHealthy=2, disruptionsAllowed=0)
    await evict(cluster, pods[0])
    with pytest.raises(ApiError):
        await evict(cluster, pods[1])
