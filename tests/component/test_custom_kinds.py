"""Definitions in a running server: served with their write, and gone only after their objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from kube_fixtures import eventually

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import MASTER

CALL = Call(MASTER)


class Cluster:
    """Store, kinds and operations without a network."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.kinds = Kinds()
        builtin.register(self.kinds, self.store)
        self.operations = Operations(self.store, self.kinds)
        self.custom = CustomKinds(self.kinds, self.operations)

    def kind(self, group: str, plural: str, version: str = "v1") -> Kind:
        found = self.kinds.find(group, version, plural)
        assert found, plural
        return found

    @property
    def definitions(self) -> Kind:
        return self.kind("apiextensions.k8s.io", "customresourcedefinitions")

    async def create(self, kind: Kind, namespace: str, obj: Obj) -> Obj:
        created: Obj = orjson.loads(await self.operations.create(kind, namespace, obj, CALL))
        return created

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        await self.operations.delete(kind, namespace, name, DeleteOptions(), CALL)

    def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        found: Obj = orjson.loads(self.operations.get(kind, namespace, name))
        return found

    def is_stored(self, storage: str, namespace: str, name: str) -> bool:
        return self.store.get(storage, namespace, name) is not None


@asynccontextmanager
async def running(directory: Path, *, working: bool = True) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory)
    cluster.custom.load()
    worker = asyncio.create_task(cluster.custom.controller.run()) if working else None
    try:
        yield cluster
    finally:
        if worker:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        await cluster.store.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path / "store") as made:
        await made.create(made.kind("", "namespaces"), "", {"metadata": {"name": "default"}})
        yield made


def definition(plural: str = "things", kind: str = "Thing") -> Obj:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [version],
        },
    }


async def test_a_kind_is_served_as_soon_as_its_definition_is_answered(cluster: Cluster) -> None:
    await cluster.create(cluster.definitions, "", definition())
    things = cluster.kind("example.com", "things")
    made = await cluster.create(things, "default", {"metadata": {"name": "a"}, "spec": {"n": 1, "unknown": 2}})
    assert made["spec"] == {"n": 1}


async def test_a_changed_schema_counts_from_the_next_write(cluster: Cluster) -> None:
    await cluster.create(cluster.definitions, "", definition())
    before = cluster.kind("example.com", "things")
    patch = [
        {
            "op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/n/maximum",
            "value": 3,
        }
    ]
    await cluster.operations.patch(cluster.definitions, "", "things.example.com", Patch.JSON, orjson.dumps(patch), CALL)
    things = cluster.kind("example.com", "things")
    assert things is not before
    with pytest.raises(ApiError, match="should be less than or equal to 3"):
        await cluster.create(things, "default", {"metadata": {"name": "a"}, "spec": {"n": 4}})


async def test_annotating_a_definition_leaves_its_kind_alone(cluster: Cluster) -> None:
    await cluster.create(cluster.definitions, "", definition())
    before = cluster.kind("example.com", "things")
    patch = orjson.dumps({"metadata": {"annotations": {"a": "b"}}})
    await cluster.operations.patch(cluster.definitions, "", "things.example.com", Patch.MERGE, patch, CALL)
    assert cluster.kind("example.com", "things") is before


async def test_objects_go_before_their_definition(cluster: Cluster) -> None:
    await cluster.create(cluster.definitions, "", definition())
    things = cluster.kind("example.com", "things")
    for number in range(3):
        await cluster.create(things, "default", {"metadata": {"name": f"t{number}"}})
    held = {"metadata": {"name": "held", "finalizers": ["example.com/held"]}}
    await cluster.create(things, "default", held)
    await cluster.delete(cluster.definitions, "", "things.example.com")

    await eventually(lambda: not cluster.is_stored("example.com/things", "default", "t0"))
    assert cluster.is_stored("example.com/things", "default", "held")
    assert cluster.is_stored("apiextensions.k8s.io/customresourcedefinitions", "", "things.example.com")
    assert "create" not in cluster.kind("example.com", "things").verbs

    release = orjson.dumps({"metadata": {"finalizers": None}})
    await cluster.operations.patch(cluster.kind("example.com", "things"), "default", "held", Patch.MERGE, release, CALL)
    await eventually(lambda: cluster.kinds.find("example.com", "v1", "things") is None)
    assert not cluster.is_stored("apiextensions.k8s.io/customresourcedefinitions", "", "things.example.com")


async def test_groups_of_built_in_kinds_are_not_to_be_had(cluster: Cluster) -> None:
    crd = definition()
    crd["spec"]["group"] = "rbac.authorization.k8s.io"
    crd["metadata"]["name"] = "things.rbac.authorization.k8s.io"
    with pytest.raises(ApiError) as refused:
        await cluster.create(cluster.definitions, "", crd)
    assert "this group is the API server's own" in refused.value.message


async def test_a_version_that_is_not_served_any_more_disappears(cluster: Cluster) -> None:
    crd = definition()
    crd["spec"]["versions"].append({**crd["spec"]["versions"][0], "name": "v2", "storage": False})
    await cluster.create(cluster.definitions, "", crd)
    await cluster.create(cluster.kind("example.com", "things"), "default", {"metadata": {"name": "a"}})
    assert cluster.get(cluster.kind("example.com", "things", "v2"), "default", "a")["apiVersion"] == "example.com/v2"
    patch = orjson.dumps([{"op": "replace", "path": "/spec/versions/1/served", "value": False}])
    await cluster.operations.patch(cluster.definitions, "", "things.example.com", Patch.JSON, patch, CALL)
    assert cluster.kinds.find("example.com", "v2", "things") is None
    assert cluster.kinds.find("example.com", "v1", "things") is not None


async def test_a_deletion_that_was_interrupted_is_finished_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "store", working=False) as cluster:
        await cluster.create(cluster.kind("", "namespaces"), "", {"metadata": {"name": "default"}})
        await cluster.create(cluster.definitions, "", definition())
        await cluster.create(cluster.kind("example.com", "things"), "default", {"metadata": {"name": "a"}})
        await cluster.delete(cluster.definitions, "", "things.example.com")
    async with running(tmp_path / "store") as cluster:
        assert cluster.kinds.find("example.com", "v1", "things") is not None
        await eventually(lambda: cluster.kinds.find("example.com", "v1", "things") is None)
        assert not cluster.is_stored("example.com/things", "default", "a")


async def test_kinds_are_back_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as cluster:
        await cluster.create(cluster.definitions, "", definition())
    async with running(tmp_path / "store") as cluster:
        assert cluster.kinds.find("example.com", "v1", "things") is not None
