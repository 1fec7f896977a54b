"""Recorded events reach the server, and never trouble the one who records them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from kube_fixtures import ScriptedServer, eventually, pod, status_answer

from virtfleet.kube import events
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import EVENTS, Obj

POD = Reference.of(pod("a", uid="uid-a"))
NODE = Reference("v1", "Node", "", "node01", "uid-n")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def recorder(server: ScriptedServer) -> AsyncIterator[Recorder]:
    async with Client(Config(server.url), patience=0.2) as api:
        recorder = Recorder(api, "virt-handler", "node01")
        task = asyncio.create_task(recorder.run())
        yield recorder
        task.cancel()
        await asyncio.wait([task])


def one(server: ScriptedServer) -> Obj | None:
    stored = server.stored(EVENTS)
    return stored[0] if len(stored) == 1 else None


async def test_an_event_says_what_happened_to_what_and_who_says_so(recorder: Recorder, server: ScriptedServer) -> None:
    recorder.warning(POD, "FailedSync", "no space left")
    event = await eventually(lambda: one(server))
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "a",
        "uid": "uid-a",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "FailedSync", "no space left")
    assert event["source"] == {"component": "virt-handler", "host": "node01"}
    assert event["metadata"]["name"].startswith("a.")
    assert event["count"] == 1
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_events_of_objects_without_namespace_are_in_default(recorder: Recorder, server: ScriptedServer) -> None:
    recorder.normal(NODE, "Ready", "it is")
    event = await eventually(lambda: one(server))
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_the_same_event_again_is_one_object_with_a_count(recorder: Recorder, server: ScriptedServer) -> None:
    for _ in range(5):
        recorder.normal(POD, "Pulled", "image is here")
    await eventually(lambda: (event := one(server)) and event["count"] == 5)
    assert server.count("POST", "/events") == 1


async def test_an_event_that_has_expired_meanwhile_is_made_anew(recorder: Recorder, server: ScriptedServer) -> None:
    recorder.normal(POD, "Pulled", "image is here")
    event = await eventually(lambda: one(server))
    server.remove(EVENTS, event["metadata"]["name"], "default")
    recorder.normal(POD, "Pulled", "image is here")
    await eventually(lambda: (again := one(server)) and again["count"] == 2)


async def test_an_event_waits_for_a_server_that_is_away_and_is_written_once(
    recorder: Recorder, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.next("POST", "/events", status_answer(ApiError("ServiceUnavailable", "starting")))
    server.next("POST", "/events", server.lose_answer)
    recorder.normal(POD, "Started", "it runs")
    recorder.normal(POD, "Started", "it runs")
    await eventually(lambda: (event := one(server)) and event["count"] == 2)
    assert server.count("POST", "/events") == 3
    assert "is refused" not in caplog.text


async def test_a_refused_event_is_dropped_and_the_next_one_written(recorder: Recorder, server: ScriptedServer) -> None:
    server.next("POST", "/events", status_answer(ApiError("Forbidden", "namespace is being terminated")))
    recorder.normal(POD, "Killing", "refused")
    recorder.normal(POD, "Killing", "fine")
    event = await eventually(lambda: one(server))
    assert event["message"] == "fine"


async def test_more_than_the_buffer_holds_is_dropped_without_a_word_to_the_caller_and_one_in_the_log(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BUFFER", 3)
    async with Client(Config(server.url)) as api:
        recorder = Recorder(api, "test")
        for n in range(10):
            recorder.normal(POD, "Many", f"number {n}")
        with caplog.at_level(logging.WARNING):
            task = asyncio.create_task(recorder.run())
            await eventually(lambda: len(server.stored(EVENTS)) == 3)
            task.cancel()
    assert [r.getMessage() for r in caplog.records if "dropped" in r.msg] == [
        "dropped 7 events: they came faster than they could be written"
    ]
