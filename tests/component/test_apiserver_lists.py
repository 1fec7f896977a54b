"""Lists and watches: consistent pages, selectors, resumed watches, bookmarks, and history that is gone."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import orjson
import pytest
from apiserver_kit import call, opened, pod, soon

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import store, watching
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.listing import Paging
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.selection import select
from virtfleet.local.apiserver.objects.watching import Watcher


class Room:
    """Pods of one server, by short commands."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        kind = operations.kinds.find("", "v1", "pods")
        assert kind is not None
        self.kind: Kind = kind

    async def add(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        obj = pod(name, **spec)
        obj["metadata"]["labels"] = labels or {}
        await self.operations.create(self.kind, "ns", obj, call())

    async def label(self, name: str, **labels: str | None) -> None:
        patch = orjson.dumps({"metadata": {"labels": labels}})
        await self.operations.patch(self.kind, "ns", name, Patch.MERGE, patch, call())

    async def remove(self, name: str) -> None:
        await self.operations.delete(self.kind, "ns", name, DeleteOptions(), call())

    async def names(self, labels: str = "", fields: str = "", namespace: str | None = "ns", **paging: Any) -> list[str]:
        listing = await self.operations.list(select(self.kind, namespace, labels, fields), Paging(**paging))
        return [record.name for record in listing.records]

    async def watch(self, version: str = "", labels: str = "", fields: str = "", **more: Any) -> Watcher:
        return self.operations.watchers.open(select(self.kind, "ns", labels, fields), version, **more)


async def seen(watcher: Watcher, count: int) -> list[tuple[str, str]]:
    """The next events: type and name."""
    found: list[tuple[str, str]] = []
    while len(found) < count:
        batch = await soon(watcher.batch(20))
        assert batch is not None, f"the watch ended after {found}"
        for event_type, event in batch:
            found.append((event_type, orjson.loads(event.data(event_type))["metadata"].get("name", "")))
    return found


class TestLists:
    async def test_selectors_choose_by_label_and_by_field(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a", {"app": "x"}, nodeName="n1")
            await room.add("b", {"app": "y"}, nodeName="n1")
            await room.add("c", {"app": "x"})
            assert await room.names("app=x") == ["a", "c"]
            assert await room.names("app in (x,y),app!=y") == ["a", "c"]
            assert await room.names(fields="spec.nodeName=n1") == ["a", "b"]
            assert await room.names("app=x", "spec.nodeName!=n1") == ["c"]
            assert await room.names(fields="metadata.name=b") == ["b"]
            assert await room.names(fields="metadata.namespace=other", namespace=None) == []

    @pytest.mark.parametrize(
        ("labels", "fields", "text"),
        [
            ("a in (", "", "unable to parse requirement"),
            ("", "spec.frob=1", "field label not supported: spec.frob"),
            ("", "nonsense", "invalid selector"),
        ],
    )
    async def test_bad_selectors_are_bad_requests(self, tmp_path: Path, labels: str, fields: str, text: str) -> None:
        async with opened(tmp_path) as operations:
            with pytest.raises(ApiError) as refused:
                await Room(operations).names(labels, fields)
            assert refused.value.code == 400
            assert text in refused.value.message

    async def test_pages_show_one_moment_whatever_happens_between_them(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            for i in range(10):
                await room.add(f"p{i}")
            selection = select(room.kind, "ns", "", "")
            first = await operations.list(selection, Paging(limit=4))
            await room.remove("p5")
            await room.add("p45")
            await room.label("p6", late="yes")
            second = await operations.list(selection, Paging(limit=4, token=first.token))
            third = await operations.list(selection, Paging(limit=4, token=second.token))
            pages = [*first.records, *second.records, *third.records]
            assert [r.name for r in pages] == [f"p{i}" for i in range(10)]
            assert b"late" not in next(r.data for r in pages if r.name == "p6")
            assert {first.revision, second.revision, third.revision} == {first.revision}
            assert third.token == ""
            exact = await operations.list(selection, Paging(resource_version=str(first.revision), match="Exact"))
            assert [r.name for r in exact.records] == [f"p{i}" for i in range(10)]
            assert "p45" in await room.names(resource_version=str(first.revision), match="NotOlderThan")

    async def test_limits_count_what_is_selected(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            for i in range(10):
                await room.add(f"p{i}", {"even": str(i % 2 == 0).lower()})
            selection = select(room.kind, "ns", "even=true", "")
            page = await operations.list(selection, Paging(limit=3))
            assert [r.name for r in page.records] == ["p0", "p2", "p4"]
            rest = await operations.list(selection, Paging(limit=3, token=page.token))
            assert [r.name for r in rest.records] == ["p6", "p8"]

    async def test_a_token_older_than_the_history_has_expired(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "WINDOW", 10)
        async with opened(tmp_path) as operations:
            room = Room(operations)
            for i in range(5):
                await room.add(f"p{i}")
            selection = select(room.kind, "ns", "", "")
            page = await operations.list(selection, Paging(limit=2))
            for i in range(40):
                await room.label("p0", turn=str(i))
            with pytest.raises(ApiError) as refused:
                await operations.list(selection, Paging(limit=2, token=page.token))
            assert (refused.value.code, refused.value.reason) == (410, "Expired")
            assert "You must start a new list without the continue parameter" in refused.value.message

    @pytest.mark.parametrize(
        ("paging", "code"),
        [
            ({"resource_version": "x"}, 400),
            ({"resource_version": "999999"}, 504),
            ({"match": "Exact"}, 422),
            ({"match": "Frob", "resource_version": "1"}, 422),
            ({"match": "Exact", "resource_version": "0"}, 422),
            ({"token": "%%%"}, 400),
            ({"token": base64.urlsafe_b64encode(b"[]").decode()}, 400),
            ({"token": base64.urlsafe_b64encode(b'{"rv":1,"start":"a"}').decode()}, 400),
            ({"token": base64.urlsafe_b64encode(b'[77777,"","a"]').decode()}, 400),
        ],
    )
    async def test_bad_versions_and_tokens_are_refused(self, tmp_path: Path, paging: dict[str, Any], code: int) -> None:
        async with opened(tmp_path) as operations:
            with pytest.raises(ApiError) as refused:
                await Room(operations).names(**paging)
            assert refused.value.code == code

    async def test_a_collection_is_deleted_as_selected(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            for i in range(120):
                await room.add(f"p{i:03}", {"third": str(i % 3)})
            await operations.delete_collection(select(room.kind, "ns", "third!=0", ""), DeleteOptions(), call())
            assert len(await room.names()) == 40


class TestWatches:
    async def test_without_a_version_the_present_comes_first(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            watcher = await room.watch()
            await room.add("b")
            await room.remove("a")
            assert await seen(watcher, 3) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]

    async def test_from_a_version_every_later_change_comes_once_and_in_order(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            version = str(operations.store.revision)
            await room.label("a", x="1")
            await room.add("b")
            watcher = await room.watch(version)
            await room.remove("a")
            assert await seen(watcher, 3) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]

    async def test_a_watch_resumes_after_the_server_was_restarted(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            version = str(operations.store.revision)
            await room.label("a", x="1")
            await room.remove("a")
        async with opened(tmp_path) as operations:
            watcher = await Room(operations).watch(version)
            await Room(operations).add("b")
            assert await seen(watcher, 3) == [("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]

    async def test_nothing_is_lost_between_history_and_present(self, tmp_path: Path) -> None:
        """Watches that begin in the midst of writes see every change exactly once."""
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            start = operations.store.revision
            total = 300
            written = [asyncio.Event() for _ in range(total + 1)]

            async def write() -> None:
                for i in range(total):
                    written[i].set()
                    await room.label("a", turn=str(i))

            async def follow(delay: int) -> list[int]:
                await written[delay].wait()
                watcher = await room.watch(str(start))
                turns: list[int] = []
                while len(turns) < total:
                    for event_type, event in await soon(watcher.batch(20)) or []:
                        turns.append(int(orjson.loads(event.data(event_type))["metadata"]["labels"]["turn"]))
                return turns

            _, *followed = await asyncio.gather(write(), *map(follow, (0, 10, 150, 250, 299)))
            assert all(turns == list(range(total)) for turns in followed)

    async def test_entering_and_leaving_a_selection_are_added_and_deleted(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a", {"app": "y"})
            watcher = await room.watch(str(operations.store.revision), "app=x")
            await room.label("a", app="x")
            await room.label("a", more="1")
            await room.label("a", app="z")
            await room.label("a", app="w")
            await room.label("a", app="x")
            assert await seen(watcher, 4) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "a")]

    async def test_the_last_state_in_a_selection_has_the_version_of_leaving_it(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a", {"app": "x"})
            watcher = await room.watch(str(operations.store.revision), "app=x")
            await room.label("a", app="z")
            [(event_type, event)] = await soon(watcher.batch(20)) or []
            left = orjson.loads(event.data(event_type))
            assert left["metadata"]["labels"] == {"app": "x"}
            assert left["metadata"]["resourceVersion"] == str(operations.store.revision)

    async def test_fields_select_in_watches_too(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            watcher = await room.watch(str(operations.store.revision), fields="spec.nodeName=n1")
            await room.add("a", nodeName="n2")
            await room.add("b", nodeName="n1")
            assert await seen(watcher, 1) == [("ADDED", "b")]

    async def test_initial_events_end_with_a_bookmark(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            watcher = await room.watch("", initial_events=True)
            [(first, _), (mark, event)] = await soon(watcher.batch(20)) or []
            assert (first, mark) == ("ADDED", "BOOKMARK")
            marked = orjson.loads(event.data(mark))
            assert marked["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            assert marked["metadata"]["resourceVersion"] == str(operations.store.revision)
            assert (marked["kind"], marked["apiVersion"]) == ("Pod", "v1")

    async def test_without_initial_events_a_watch_begins_now(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            watcher = await room.watch("", initial_events=False)
            await room.add("b")
            assert await seen(watcher, 1) == [("ADDED", "b")]

    async def test_compacted_history_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "WINDOW", 10)
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            version = str(operations.store.revision)
            for i in range(40):
                await room.label("a", turn=str(i))
            with pytest.raises(ApiError) as refused:
                await room.watch(version)
            assert refused.value.code == 410
            assert len(operations.watchers) == 0

    async def test_a_version_that_never_was_is_refused(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations:
            with pytest.raises(ApiError) as refused:
                await Room(operations).watch(str(operations.store.revision + 1))
            assert (refused.value.code, refused.value.reason) == (410, "Expired")
            assert len(operations.watchers) == 0

    async def test_a_watcher_that_does_not_keep_up_is_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "QUEUE_LIMIT", 5)
        async with opened(tmp_path) as operations:
            room = Room(operations)
            await room.add("a")
            slow, quick = await room.watch(), await room.watch()
            cut = asyncio.Event()
            slow.on_overflow = cut.set
            assert await seen(quick, 1) == [("ADDED", "a")]
            for i in range(6):
                await room.label("a", turn=str(i))
                assert await seen(quick, 1) == [("MODIFIED", "a")]
            assert cut.is_set()
            assert await slow.batch(20) is None
