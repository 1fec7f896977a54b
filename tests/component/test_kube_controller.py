"""The controller loop over a real cache: what is reconciled, when, and by how many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from kube_fixtures import ScriptedServer, eventually, pod

from virtfleet.kube.cache import Cache
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import NODES, PODS, Obj


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def pods(server: ScriptedServer) -> AsyncIterator[Cache[Obj]]:
    async with Client(Config(server.url)) as api:
        yield Cache(api, PODS, decode=orjson.loads)


@asynccontextmanager
async def running(controller: Controller, *caches: Cache[Obj]) -> AsyncIterator[asyncio.Task[None]]:
    tasks = [asyncio.create_task(cache.run()) for cache in caches]
    work = asyncio.create_task(controller.run())
    try:
        yield work
    finally:
        for task in (work, *tasks):
            task.cancel()
        await asyncio.wait([work, *tasks])


async def test_every_object_is_reconciled_and_again_after_each_change(server: ScriptedServer, pods: Cache[Obj]) -> None:
    seen: Counter[str] = Counter()

    async def reconcile(key: str) -> None:
        seen[key] += 1

    server.put(PODS, pod("a"))
    controller = Controller("every", reconcile)
    controller.follow(pods)
    async with running(controller, pods):
        await eventually(lambda: seen == {"default/a": 1} and server.watchers)
        server.put(PODS, pod("a", labels={"x": "y"}))
        await eventually(lambda: seen == {"default/a": 2})
        server.remove(PODS, "a", "default")
        await eventually(lambda: seen == {"default/a": 3})


async def test_a_moved_object_wakes_both_owners(server: ScriptedServer, pods: Cache[Obj]) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    controller = Controller("owners", reconcile)
    controller.follow(pods, lambda obj: [obj["spec"]["nodeName"]])
    server.put(PODS, pod("a"))
    async with running(controller, pods):
        await eventually(lambda: seen == ["node01"] and server.watchers)
        server.put(PODS, {**pod("a"), "spec": {"nodeName": "node02"}})
        await eventually(lambda: seen == ["node01", "node01", "node02"])


async def test_nothing_is_reconciled_before_every_cache_is_in_sync(server: ScriptedServer, pods: Cache[Obj]) -> None:
    seen: list[int] = []
    nodes = Cache(pods._api, NODES, decode=orjson.loads)

    async def reconcile(key: str) -> None:
        seen.append(len(nodes))

    server.put(PODS, pod("a"))
    server.put(NODES, {"metadata": {"name": "node01"}})
    controller = Controller("sync", reconcile, [nodes])
    controller.follow(pods)
    async with running(controller, pods):
        await asyncio.wait_for(pods.synced.wait(), 20)
        assert len(controller.queue) == 1
        late = asyncio.create_task(nodes.run())
        await eventually(lambda: seen == [1])
        late.cancel()


async def test_workers_run_side_by_side_but_never_on_one_key(server: ScriptedServer, pods: Cache[Obj]) -> None:
    running_now: set[str] = set()
    runs: Counter[str] = Counter()
    widest = 0
    release = asyncio.Event()

    async def reconcile(key: str) -> None:
        nonlocal widest
        assert key not in running_now
        running_now.add(key)
        widest = max(widest, len(running_now))
        await release.wait()
        running_now.discard(key)
        runs[key] += 1

    for n in range(3):
        server.put(PODS, pod(f"p{n}"))
    controller = Controller("workers", reconcile, workers=8)
    controller.follow(pods)
    async with running(controller, pods):
        await eventually(lambda: widest == 3)
        for key in pods.keys() * 5:
            controller.queue.add(key)
        release.set()
        await eventually(lambda: set(runs.values()) == {2})


async def test_a_failure_is_tried_again_and_logged_unless_it_is_a_conflict(
    server: ScriptedServer, pods: Cache[Obj], caplog: pytest.LogCaptureFixture
) -> None:
    errors = {
        "default/refused": ApiError("Forbidden", "may not"),
        "default/conflict": ApiError("Conflict", "somebody was faster"),
        "default/bug": KeyError("spec"),
    }
    done = []

    async def reconcile(key: str) -> None:
        if error := errors.pop(key, None):
            raise error
        done.append(key)

    for key in errors:
        server.put(PODS, pod(key.partition("/")[2]))
    controller = Controller("failing", reconcile)
    controller.follow(pods)
    with caplog.at_level(logging.INFO, "virtfleet.kube.controller"):
        async with running(controller, pods):
            await eventually(lambda: len(done) == 3)
    logged = {record.args[1]: record for record in caplog.records if record.levelno == logging.ERROR and record.args}
    assert set(logged) == {"default/refused", "default/bug"}
    assert not logged["default/refused"].exc_info  # the server's words are enough
    assert logged["default/bug"].exc_info


async def test_a_number_asks_to_be_called_again(server: ScriptedServer, pods: Cache[Obj]) -> None:
    calls = 0

    async def reconcile(key: str) -> float | None:
        nonlocal calls
        calls += 1
        return 0.01 if calls < 3 else None

    server.put(PODS, pod("a"))
    controller = Controller("again", reconcile)
    controller.follow(pods)
    async with running(controller, pods):
        await eventually(lambda: calls == 3)


async def test_cancelling_ends_a_reconcile_in_the_middle_and_leaves_nothing_running(
    server: ScriptedServer, pods: Cache[Obj]
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def reconcile(key: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.put(PODS, pod("a"))
    controller = Controller("cancelled", reconcile, workers=2)
    controller.follow(pods)
    async with running(controller, pods) as work:
        await asyncio.wait_for(started.wait(), 20)
        controller.queue.add_after("b", 3600)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert ended.is_set()
        assert not controller.queue._later
