"""The cache follows the server through everything that happens to servers and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web
from kube_fixtures import ScriptedServer, eventually, pod, status_answer

from virtfleet.kube.cache import Cache, key_of, split_key
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, Obj

Told = list[tuple[str, str]]  # what handlers were told: "added" | "changed" | "deleted", key


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def api(server: ScriptedServer) -> AsyncIterator[Client]:
    async with Client(Config(server.url), patience=0.2, idle=0.5) as client:
        yield client


@asynccontextmanager
async def following(cache: Cache[Any], *, watching: ScriptedServer | None = None) -> AsyncIterator[Told]:
    """Run a cache; once it is in sync (and watches, if a server is given) the body runs."""
    told: Told = []

    def note(key: str, old: Any, new: Any) -> None:
        told.append(("added" if old is None else "deleted" if new is None else "changed", key))

    cache.on_change(note)
    task = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(20):
            await cache.synced.wait()
        if watching:
            await eventually(lambda: watching.watchers)
        yield told
    finally:
        task.cancel()
        await asyncio.wait([task])


def cache_of(api: Client, **settings: Any) -> Cache[Obj]:
    return Cache(api, PODS, decode=orjson.loads, **settings)


def names(cache: Cache[Any]) -> list[str]:
    return sorted(key.partition("/")[2] for key in cache.keys())  # noqa: SIM118  a cache is no dict


def labels(cache: Cache[Obj], key: str) -> dict[str, str]:
    obj = cache.get(key)
    return obj["metadata"].get("labels", {}) if obj else {}


async def test_it_lists_then_follows_every_change(api: Client, server: ScriptedServer) -> None:
    server.put(PODS, pod("a"))
    cache = cache_of(api)
    async with following(cache, watching=server) as told:
        assert names(cache) == ["a"]
        server.put(PODS, pod("b"))
        server.put(PODS, pod("a", labels={"x": "1"}))
        server.remove(PODS, "b", "default")
        await eventually(lambda: len(told) == 4)
        assert told == [
            ("added", "default/a"),
            ("added", "default/b"),
            ("changed", "default/a"),
            ("deleted", "default/b"),
        ]
        assert labels(cache, "default/a") == {"x": "1"}
        assert cache.get("default/b") is None
        assert len(cache) == 1


async def test_it_can_be_limited_to_a_namespace_and_selectors(api: Client, server: ScriptedServer) -> None:
    server.put(PODS, pod("a", "here"))
    server.put(PODS, pod("a", "there"))
    cache = cache_of(api, namespace="here", labels="app=x", fields="spec.nodeName=n")
    async with following(cache, watching=server):
        assert cache.keys() == ["here/a"]
    assert all("/namespaces/here/pods" in path and "labelSelector=app%3Dx" in path for _, path in server.requests)


async def test_handlers_that_come_later_are_told_of_what_is_here(api: Client, server: ScriptedServer) -> None:
    server.put(PODS, pod("a"))
    cache = cache_of(api)
    async with following(cache):
        late: list[str] = []
        cache.on_change(lambda key, old, new: late.append(key))
        assert late == ["default/a"]


async def test_a_handler_that_fails_stops_neither_the_cache_nor_other_handlers(
    api: Client, server: ScriptedServer
) -> None:
    cache = cache_of(api)
    cache.on_change(lambda key, old, new: 1 / 0)  # type: ignore[func-returns-value]
    async with following(cache, watching=server) as told:
        server.put(PODS, pod("a"))
        await eventually(lambda: told == [("added", "default/a")])


class View(msgspec.Struct):
    class Spec(msgspec.Struct):
        nodeName: str = ""

    spec: Spec


class TestProjections:
    async def test_it_keeps_what_decode_makes_of_an_object(self, api: Client, server: ScriptedServer) -> None:
        server.put(PODS, pod("a"))
        cache = Cache(api, PODS, decode=msgspec.json.Decoder(View).decode)
        async with following(cache):
            assert cache.list() == [View(View.Spec("node01"))]

    async def test_indexes_follow_the_objects(self, api: Client, server: ScriptedServer) -> None:
        def on(name: str, *nodes: str) -> Obj:
            return {**pod(name), "spec": {"nodes": [*nodes]}}

        server.put(PODS, on("a", "n1"))
        server.put(PODS, on("b", "n1", "n2"))
        cache = cache_of(api, indexes={"node": lambda obj: obj["spec"]["nodes"]})

        def at(node: str) -> list[str]:
            return sorted(obj["metadata"]["name"] for obj in cache.by_index("node", node))

        async with following(cache, watching=server) as told:
            assert (at("n1"), at("n2"), at("n3")) == (["a", "b"], ["b"], [])
            server.put(PODS, on("a", "n3"))
            server.remove(PODS, "b", "default")
            await eventually(lambda: len(told) == 4)
            assert (at("n1"), at("n2"), at("n3")) == ([], [], ["a"])

    async def test_an_object_that_cannot_be_read_keeps_its_last_state_and_hides_nobody_else(
        self, api: Client, server: ScriptedServer
    ) -> None:
        server.put(PODS, pod("good"))
        server.put(PODS, pod("spoiled"))
        server.put(PODS, {**pod("bad"), "spec": "nonsense"})
        cache = Cache(api, PODS, decode=msgspec.json.Decoder(View).decode)
        async with following(cache, watching=server) as told:
            assert names(cache) == ["good", "spoiled"]
            server.put(PODS, {**pod("spoiled"), "spec": "nonsense"})
            server.put(PODS, pod("bad"))
            await eventually(lambda: ("added", "default/bad") in told)
            assert names(cache) == ["bad", "good", "spoiled"]
            server.say(b"garbage\n")  # and also a new list does not make it look deleted
            server.put(PODS, pod("last"))
            await eventually(lambda: server.count("GET", "limit=") == 2 and "last" in names(cache))
            assert names(cache) == ["bad", "good", "last", "spoiled"]


class TestInterruptions:
    @pytest.mark.parametrize("fault", ["drop_watches", "end_watches"])
    async def test_a_watch_that_ends_goes_on_where_it_was_without_a_list(
        self, api: Client, server: ScriptedServer, fault: str
    ) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server):
            server.put(PODS, pod("a"))
            await eventually(lambda: names(cache) == ["a"])
            getattr(server, fault)()
            server.put(PODS, pod("b"))
            await eventually(lambda: names(cache) == ["a", "b"])
        assert server.count("GET", "limit=") == 1

    async def test_a_silent_connection_is_given_up_without_alarm_and_the_watch_goes_on(
        self, api: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        cache = cache_of(api)
        async with following(cache, watching=server):
            deaf = server.watchers[0]
            server.watchers.clear()  # this connection stays open and nothing will ever come of it
            server.put(PODS, pod("a"))
            await eventually(lambda: names(cache) == ["a"])
            assert server.watchers[0] is not deaf
            server.watchers.append(deaf)
        assert server.count("GET", "limit=") == 1
        assert {r.levelname for r in caplog.records if "gone silent" in r.message} == {"INFO"}

    async def test_half_a_line_before_a_break_is_read_again_as_a_whole(
        self, api: Client, server: ScriptedServer
    ) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server):
            server.say(b'{"type":"ADDED","object":{"metadata":{"name":"a","names')
            server.end_watches()
            server.put(PODS, pod("a"), silently=False)
            await eventually(lambda: names(cache) == ["a"])
        assert server.count("GET", "limit=") == 1

    @pytest.mark.parametrize(
        "garbage", [b"<html>502</html>\n", b'{"type":"ADDED","object":{"metadata":{}}}\n', b'{"type":"BOOKMARK"}\n']
    )
    async def test_after_nonsense_it_lists_again(self, api: Client, server: ScriptedServer, garbage: bytes) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server):
            server.put(PODS, pod("hidden"), silently=True)  # whatever the nonsense stood for
            server.say(garbage)
            await eventually(lambda: names(cache) == ["hidden"])

    async def test_after_410_it_lists_again_and_finds_what_was_deleted(
        self, api: Client, server: ScriptedServer
    ) -> None:
        for name in ("kept", "changed", "gone", "remade"):
            server.put(PODS, pod(name))
        cache = cache_of(api)
        async with following(cache, watching=server) as told:
            told.clear()
            server.put(PODS, pod("changed", labels={"x": "1"}), silently=True)
            server.remove(PODS, "gone", "default", silently=True)
            server.remove(PODS, "remade", "default", silently=True)
            server.put(PODS, pod("remade"), silently=True)
            server.put(PODS, pod("new"), silently=True)
            server.compacted = server.revision
            server.drop_watches()
            await eventually(lambda: names(cache) == ["changed", "kept", "new", "remade"])
            assert sorted(told) == [
                ("added", "default/new"),
                ("added", "default/remade"),
                ("changed", "default/changed"),
                ("deleted", "default/gone"),
                ("deleted", "default/remade"),
            ]

    async def test_a_bookmark_spares_a_list_after_compaction(self, api: Client, server: ScriptedServer) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server):
            server.revision += 1000  # much happened, none of it to pods
            server.bookmark()
            await eventually(lambda: cache._revision == server.revision)
            server.compacted = server.revision
            server.drop_watches()
            server.put(PODS, pod("a"))
            await eventually(lambda: names(cache) == ["a"])
        assert server.count("GET", "limit=") == 1

    async def test_it_serves_its_last_state_while_the_server_is_away_and_catches_up_afterwards(
        self, api: Client, server: ScriptedServer
    ) -> None:
        server.put(PODS, pod("a"))
        server.put(PODS, pod("b"))
        cache = cache_of(api)
        async with following(cache, watching=server) as told:
            await server.stop()
            refused = asyncio.create_task(api.list(PODS))
            await asyncio.wait([refused])
            assert isinstance(refused.exception(), ApiError)
            assert names(cache) == ["a", "b"]
            server.remove(PODS, "a", "default", silently=True)
            server.put(PODS, pod("c"), silently=True)
            server.compacted = server.revision
            await server.start()
            await eventually(lambda: names(cache) == ["b", "c"])
            assert ("deleted", "default/a") in told

    async def test_a_server_that_is_away_at_first_is_waited_for(self, api: Client, server: ScriptedServer) -> None:
        server.put(PODS, pod("a"))
        await server.stop()
        cache = cache_of(api)
        task = asyncio.create_task(cache.run())
        _, pending = await asyncio.wait([task], timeout=0.5)
        assert pending
        assert not cache.synced.is_set()
        await server.start()
        async with asyncio.timeout(20):
            await cache.synced.wait()
        assert names(cache) == ["a"]
        task.cancel()

    async def test_a_list_that_is_refused_is_tried_again(self, api: Client, server: ScriptedServer) -> None:
        server.next("GET", "/pods", status_answer(ApiError("Forbidden", "not yet")), times=2)
        async with following(cache_of(api)):
            assert server.count("GET", "limit=") == 3

    async def test_a_server_with_another_history_is_believed(self, api: Client, server: ScriptedServer) -> None:
        server.put(PODS, pod("a"))
        server.put(PODS, pod("b", labels={"x": "old"}))
        server.revision = 5000
        cache = cache_of(api)
        async with following(cache, watching=server):
            server.remove(PODS, "a", "default", silently=True)
            server.go_back(100)
            server.put(PODS, pod("b", labels={"x": "restored"}), silently=True)
            server.say(b"garbage\n")
            await eventually(lambda: names(cache) == ["b"])
            assert labels(cache, "default/b") == {"x": "restored"}


class TestOwnWrites:
    async def test_an_answer_to_a_write_is_seen_at_once_and_not_rolled_back(
        self, api: Client, server: ScriptedServer
    ) -> None:
        server.put(PODS, pod("a"))
        cache = cache_of(api)
        async with following(cache, watching=server) as told:
            deaf = [*server.watchers]
            server.watchers.clear()  # events are late
            older = server.put(PODS, pod("a", labels={"v": "1"}))
            cache.observe(await api.patch(PODS, "a", {"metadata": {"labels": {"v": "2"}}}, "default"))
            assert labels(cache, "default/a") == {"v": "2"}
            server.watchers += deaf
            server.say(orjson.dumps({"type": "MODIFIED", "object": older}) + b"\n")
            server.put(PODS, pod("end"))
            await eventually(lambda: ("added", "default/end") in told)
            assert labels(cache, "default/a") == {"v": "2"}
            assert told.count(("changed", "default/a")) == 1

    async def test_an_object_that_was_deleted_meanwhile_does_not_come_back(
        self, api: Client, server: ScriptedServer
    ) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server) as told:
            made = await api.create(PODS, pod("a"))
            server.remove(PODS, "a", "default")
            await eventually(lambda: ("deleted", "default/a") in told)
            cache.observe(made)
            assert names(cache) == []

    async def test_a_list_from_before_a_write_does_not_undo_it(self, api: Client, server: ScriptedServer) -> None:
        cache = cache_of(api)
        release = asyncio.Event()

        async def slow_and_old(request: web.Request) -> web.StreamResponse:
            answer = {"metadata": {"resourceVersion": str(server.revision)}, "items": []}
            await release.wait()
            return web.json_response(answer)

        async with following(cache, watching=server) as told:
            server.next("GET", "limit=", slow_and_old)
            server.say(b"garbage\n")
            await eventually(lambda: server.count("GET", "limit=") == 2)
            cache.observe(await api.create(PODS, pod("a")))
            release.set()
            await eventually(lambda: server.watchers)
            assert told == [("added", "default/a")]

    @pytest.mark.parametrize(
        ("settings", "taken"),
        [
            ({}, True),
            ({"namespace": "default"}, True),
            ({"namespace": "other"}, False),
            ({"labels": "app=x"}, True),
            ({"labels": "app=y"}, False),
            ({"fields": "spec.nodeName=node01"}, False),  # only the server knows
        ],
    )
    async def test_only_what_belongs_into_a_cache_is_taken(
        self, api: Client, server: ScriptedServer, settings: dict[str, str], taken: bool
    ) -> None:
        cache = cache_of(api, **settings)
        async with following(cache):
            cache.observe({**pod("a", labels={"app": "x"}, resourceVersion="999")})
            assert names(cache) == (["a"] if taken else [])

    async def test_versions_that_are_no_numbers_are_left_to_the_watch(
        self, api: Client, server: ScriptedServer
    ) -> None:
        cache = cache_of(api)
        async with following(cache, watching=server) as told:
            cache.observe(pod("a", resourceVersion="opaque"))
            assert names(cache) == []
            for version in ("zz", "aa"):
                obj = pod("b", resourceVersion=version, labels={"v": version})
                server.say(orjson.dumps({"type": "ADDED", "object": obj}) + b"\n")
            await eventually(lambda: len(told) == 2)
            assert labels(cache, "default/b") == {"v": "aa"}


@pytest.mark.parametrize(("key", "parts"), [("ns/a", ("ns", "a")), ("a", (None, "a"))])
def test_keys_split_into_what_they_were_made_of(key: str, parts: tuple[str | None, str]) -> None:
    assert split_key(key) == parts
    namespace, name = parts
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    assert key_of({"metadata": meta}) == key
