"""The API for the server's own process behaves like the one over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from apiserver_kit import WIDGETS, opened, pod, soon

from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ApiError, is_conflict, is_gone, is_not_found
from virtfleet.kube.resource import NODES, PODS, Obj
from virtfleet.local.apiserver.objects import inprocess, store
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.rights.access import MASTER, User


async def test_objects_live_and_die(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations:
        api: KubeApi = InProcessApi(operations, MASTER)
        sent = pod("a", image="1")
        made = await api.create(PODS, sent, "ns")
        assert sent == pod("a", image="1"), "what a caller passes stays the caller's"
        assert await api.get(PODS, "a", "ns") == made
        assert await api.list(PODS, "ns", labels="x=y") == []
        patched = await api.patch(PODS, "a", {"spec": {"image": "2"}}, "ns")
        with pytest.raises(ApiError) as stale:
            await api.replace(PODS, made)
        assert is_conflict(stale.value)
        replaced = await api.replace(PODS, {**patched, "status": {"phase": "Running"}}, subresource="status")
        assert replaced["status"] == {"phase": "Running"}
        dry = await api.patch(PODS, "a", [{"op": "remove", "path": "/spec/image"}], "ns", how=Patch.JSON, dry_run=True)
        assert dry["spec"]["image"] == "default"
        await api.delete(PODS, "a", "ns", uid=made["metadata"]["uid"])
        with pytest.raises(ApiError) as missing:
            await api.get(PODS, "a", "ns")
        assert is_not_found(missing.value)


async def test_pages_cover_everything_at_one_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations:
        api = InProcessApi(operations, MASTER)
        await asyncio.gather(*(api.create(PODS, pod(f"p{i}"), "ns") for i in range(25)))
        pages = [page async for page in api.pages(PODS, limit=10)]
        assert [len(page.items) for page in pages] == [10, 10, 5]
        assert len({page.resource_version for page in pages}) == 1
        assert all(orjson.loads(item)["kind"] == "Pod" for page in pages for item in page.items)
        await api.delete_collection(PODS, "ns")
        assert await api.list(PODS) == []


async def test_a_watch_follows_changes_and_marks_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inprocess, "BOOKMARK_SECONDS", 0.05)
    async with opened(tmp_path) as operations:
        api = InProcessApi(operations, MASTER)
        version = str(operations.store.revision)
        async with api.watch(PODS, "ns", resource_version=version) as events:
            made = await api.create(PODS, pod("a"), "ns")
            first = await soon(anext(events))
            assert (first.type, orjson.loads(first.object)) == ("ADDED", made)
            mark = await soon(anext(events))
            assert mark.type == "BOOKMARK"
            assert orjson.loads(mark.object)["metadata"]["resourceVersion"] == str(operations.store.revision)
        assert len(operations.watchers) == 0


async def test_a_watch_ends_after_its_timeout_or_with_the_server(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations:
        api = InProcessApi(operations, MASTER)
        await api.create(PODS, pod("a"), "ns")
        async with api.watch(PODS, timeout=0.05) as events:
            assert [event.type async for event in events] == ["ADDED", "BOOKMARK"]
        async with api.watch(PODS) as events:
            assert (await soon(anext(events))).type == "ADDED"
            operations.watchers.end()
            assert [event async for event in events] == []


async def test_history_that_is_gone_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WINDOW", 5)
    async with opened(tmp_path) as operations:
        api = InProcessApi(operations, MASTER)
        for i in range(20):
            await api.create(PODS, pod(f"p{i}"), "ns")
        with pytest.raises(ApiError) as refused:
            async with api.watch(PODS, resource_version="2"):
                pass
        assert is_gone(refused.value)


class Replaceable:
    """An API that becomes another one, as when a cluster is wiped and made anew at the same address."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)


async def test_a_cache_starts_over_when_the_store_was_wiped(tmp_path: Path) -> None:
    async with opened(tmp_path / "old") as old, opened(tmp_path / "new") as new:
        api: Any = Replaceable(InProcessApi(old))
        for i in range(20):
            await api.create(PODS, pod(f"p{i}"), "ns")
        cache: Cache[Obj] = Cache(api, PODS, decode=orjson.loads)
        following = asyncio.create_task(cache.run())
        await soon(cache.synced.wait())
        assert len(cache) == 20
        api.api = InProcessApi(new)
        await api.create(PODS, pod("other"), "ns")
        only_the_new_one = asyncio.Event()
        cache.on_change(lambda *_: only_the_new_one.set() if cache.keys() == ["ns/other"] else None)
        old.watchers.end()  # the connection to the old server breaks
        await soon(only_the_new_one.wait())
        following.cancel()


async def test_posts_and_versions_of_kinds_are_served(tmp_path: Path) -> None:
    async def bind(obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
        return {"bound": f"{namespace}/{name} by {user.name}", "dry": dry_run}

    async with opened(tmp_path) as operations:
        api = InProcessApi(operations, User("scheduler"))
        operations.posts["", "pods", "binding"] = bind
        answer = await api.create(PODS, {}, "ns", name="a", subresource="binding", dry_run=True)
        assert answer == {"bound": "ns/a by scheduler", "dry": True}
        assert (await api.create(WIDGETS, pod("w"), "ns"))["apiVersion"] == "example.io/v1"
        with pytest.raises(ApiError) as unknown:
            await api.get(NODES, "n")
        assert is_not_found(unknown.value)
