"""Garbage collection: what goes with its owner, what waits, and what is left alone."""

from __future__ import annotations

import pytest
from local_cluster import Cluster

from virtfleet.kube.resource import CONFIG_MAPS, NODES, SECRETS, Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind

WIDGETS = Resource("example.com", "v1", "widgets", "Widget")


def owned_by(*owners: Obj, block: bool = False) -> list[Obj]:
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]


async def create(
    cluster: Cluster, name: str, *owners: Obj, resource: Resource = CONFIG_MAPS, block: bool = False, **meta: object
) -> Obj:
    obj = {"metadata": {"name": name, "ownerReferences": owned_by(*owners, block=block), **meta}}
    return await cluster.api.create(resource, obj, "default")


async def names(cluster: Cluster, resource: Resource = CONFIG_MAPS) -> list[str]:
    return [o["metadata"]["name"] for o in await cluster.api.list(resource, "default")]


async def test_dependents_go_after_their_owner_down_to_the_last(cluster: Cluster) -> None:
    owner = await create(cluster, "owner")
    child = await create(cluster, "child", owner, resource=SECRETS)
    await create(cluster, "grandchild", child)
    await create(cluster, "stranger")
    await cluster.api.delete(CONFIG_MAPS, "owner", "default")
    await cluster.gone(SECRETS, "child")
    await cluster.gone(CONFIG_MAPS, "grandchild")
    assert await names(cluster) == ["stranger"]


async def test_an_object_stays_while_one_owner_is_left_and_loses_the_reference_to_the_other(cluster: Cluster) -> None:
    one, two = await create(cluster, "one"), await create(cluster, "two")
    await create(cluster, "child", one, two)
    await cluster.api.delete(CONFIG_MAPS, "one", "default")

    async def only_two() -> bool:
        child = await cluster.api.get(CONFIG_MAPS, "child", "default")
        return [r["name"] for r in child["metadata"]["ownerReferences"]] == ["two"]

    await cluster.until(only_two)
    await cluster.api.delete(CONFIG_MAPS, "two", "default")
    await cluster.gone(CONFIG_MAPS, "child")


async def test_an_owner_of_the_same_name_but_another_uid_is_no_owner(cluster: Cluster) -> None:
    owner = await create(cluster, "owner")
    reference = {**owner, "metadata": {**owner["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    await create(cluster, "child", reference)
    await cluster.gone(CONFIG_MAPS, "child")
    assert await names(cluster) == ["owner"]


async def test_foreground_deletion_waits_for_blocking_dependents_only(cluster: Cluster) -> None:
    owner = await create(cluster, "owner")
    await create(cluster, "blocking", owner, block=True, finalizers=["example.com/hold"])
    await create(cluster, "other", owner)
    await cluster.api.delete(CONFIG_MAPS, "owner", "default", propagation="Foreground")
    await cluster.gone(CONFIG_MAPS, "other")

    async def marked() -> bool:
        blocking = await cluster.api.get(CONFIG_MAPS, "blocking", "default")
        return "deletionTimestamp" in blocking["metadata"]

    await cluster.until(marked)
    assert "deletionTimestamp" in (await cluster.api.get(CONFIG_MAPS, "owner", "default"))["metadata"]
    await cluster.api.patch(CONFIG_MAPS, "blocking", {"metadata": {"finalizers": []}}, "default")
    await cluster.gone(CONFIG_MAPS, "owner")
    await cluster.gone(CONFIG_MAPS, "blocking")


async def test_foreground_deletion_reaches_grandchildren_first(cluster: Cluster) -> None:
    owner = await create(cluster, "owner")
    child = await create(cluster, "child", owner, block=True)
    await create(cluster, "grandchild", child, block=True, finalizers=["example.com/hold"])
    await cluster.api.delete(CONFIG_MAPS, "owner", "default", propagation="Foreground")

    async def all_marked() -> bool:
        found = await cluster.api.list(CONFIG_MAPS, "default")
        return len(found) == 3 and all("deletionTimestamp" in o["metadata"] for o in found)

    await cluster.until(all_marked)
    await cluster.api.patch(CONFIG_MAPS, "grandchild", {"metadata": {"finalizers": []}}, "default")
    await cluster.gone(CONFIG_MAPS, "owner")
    assert await names(cluster) == []


async def test_orphans_stay_without_the_reference(cluster: Cluster) -> None:
    owner = await create(cluster, "owner")
    await create(cluster, "child", owner)
    await cluster.until(lambda: cluster.api.get(CONFIG_MAPS, "child", "default"))
    await cluster.api.delete(CONFIG_MAPS, "owner", "default", propagation="Orphan")
    await cluster.gone(CONFIG_MAPS, "owner")
    child = await cluster.api.get(CONFIG_MAPS, "child", "default")
    assert not child["metadata"].get("ownerReferences")


async def test_owners_of_the_cluster_own_objects_in_namespaces(cluster: Cluster) -> None:
    node = await cluster.node("extra")
    await create(cluster, "lease-like", node)
    await cluster.api.delete(NODES, "extra")
    await cluster.gone(CONFIG_MAPS, "lease-like")


async def test_kinds_that_come_later_are_collected_too(cluster: Cluster) -> None:
    cluster.kinds.add(Kind(WIDGETS, singular="widget", list_kind="WidgetList", custom=True))
    widget = await create(cluster, "widget", resource=WIDGETS)
    await create(cluster, "child", widget)
    await create(cluster, "small", widget, resource=WIDGETS)
    await cluster.api.delete(WIDGETS, "widget", "default")
    await cluster.gone(CONFIG_MAPS, "child")
    await cluster.gone(WIDGETS, "small")


async def test_dependents_go_even_where_the_kind_of_their_owner_goes_with_it(cluster: Cluster) -> None:
    cluster.kinds.add(Kind(WIDGETS, singular="widget", list_kind="WidgetList", custom=True))
    widget = await create(cluster, "widget", resource=WIDGETS)
    other = await create(cluster, "other", resource=WIDGETS)
    await create(cluster, "child", widget)
    await create(cluster, "witness", other)
    await cluster.api.delete(WIDGETS, "other", "default")
    await cluster.gone(CONFIG_MAPS, "witness")  # by now the kind is followed
    await cluster.api.delete(WIDGETS, "widget", "default")
    cluster.kinds.remove("example.com", "widgets")
    await cluster.gone(CONFIG_MAPS, "child")


@pytest.mark.parametrize("kind", ["Unheard", "ConfigMap"])
async def test_what_cannot_be_looked_up_is_not_deleted(cluster: Cluster, kind: str) -> None:
    # a kind that nobody serves, or an object of the cluster that names an owner in a namespace
    reference = {"apiVersion": "v1", "kind": kind, "name": "x", "uid": "00000000-0000-0000-0000-000000000000"}
    await cluster.api.create(NODES, {"metadata": {"name": "kept", "ownerReferences": [reference]}})
    owner = await create(cluster, "owner")
    await create(cluster, "child", owner)
    await cluster.api.delete(CONFIG_MAPS, "owner", "default")
    await cluster.gone(CONFIG_MAPS, "child")
    assert await cluster.api.get(NODES, "kept")
