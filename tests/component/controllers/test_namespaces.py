"""Deleting a namespace empties it first."""

from __future__ import annotations

from local_cluster import Cluster

from virtfleet.kube.resource import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, Obj


def condition(namespace: Obj, kind: str) -> Obj:
    return next((c for c in namespace["status"].get("conditions", []) if c["type"] == kind), {})


async def test_everything_in_a_namespace_goes_with_it(cluster: Cluster) -> None:
    await cluster.api.create(NAMESPACES, {"metadata": {"name": "team"}})
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await cluster.api.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec}, "team")
    await cluster.api.create(CONFIG_MAPS, {"metadata": {"name": "kept"}}, "default")

    async def running() -> bool:
        return len(await cluster.api.list(PODS, "team")) == 2

    await cluster.until(running)
    await cluster.api.delete(NAMESPACES, "team")
    await cluster.gone(NAMESPACES, "team", None)
    assert await cluster.api.list(PODS, "team") == []
    assert await cluster.api.get(CONFIG_MAPS, "kept", "default")


async def test_a_namespace_says_what_it_waits_for(cluster: Cluster) -> None:
    await cluster.api.create(NAMESPACES, {"metadata": {"name": "team"}})
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    await cluster.api.create(CONFIG_MAPS, held, "team")
    await cluster.api.delete(NAMESPACES, "team")

    async def waiting() -> Obj | None:
        namespace = await cluster.api.get(NAMESPACES, "team")
        return namespace if condition(namespace, "NamespaceFinalizersRemaining").get("status") == "True" else None

    namespace = await cluster.until(waiting)
    assert namespace["status"]["phase"] == "Terminating"
    assert condition(namespace, "NamespaceContentRemaining")["message"] == (
        "Some resources are remaining: configmaps. has 1 resource instances"
    )
    assert condition(namespace, "NamespaceFinalizersRemaining")["message"] == (
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    )
    await cluster.api.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": []}}, "team")
    await cluster.gone(NAMESPACES, "team", None)
