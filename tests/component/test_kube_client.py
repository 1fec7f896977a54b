"""The client against a server that misbehaves: what is repeated, what is not, and what the caller gets to see."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import WSMsgType, web
from kube_fixtures import ScriptedServer, eventually, hang_up, pod, status_answer
from prometheus_client import REGISTRY

from virtfleet.kube.api import Patch
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError, is_already_exists, is_conflict, is_gone, is_not_found
from virtfleet.kube.resource import NODES, PODS


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def api(server: ScriptedServer) -> AsyncIterator[Client]:
    async with Client(Config(server.url), patience=5.0, idle=0.3) as client:
        yield client


BUSY = ApiError("TooManyRequests", "busy")
DOWN = ApiError("ServiceUnavailable", "shutting down")


async def test_objects_go_there_and_back(api: Client) -> None:
    made = await api.create(PODS, pod("a"))
    assert made["metadata"]["resourceVersion"]
    made["metadata"]["labels"] = {"x": "1"}
    replaced = await api.replace(PODS, made)
    patched = await api.patch(PODS, "a", {"metadata": {"labels": {"y": "2"}}}, "default")
    assert patched["metadata"]["labels"] == {"x": "1", "y": "2"}
    assert (await api.get(PODS, "a", "default")) == patched
    with pytest.raises(ApiError) as conflict:
        await api.replace(PODS, replaced)
    assert is_conflict(conflict.value)
    with pytest.raises(ApiError) as exists:
        await api.create(PODS, pod("a"))
    assert is_already_exists(exists.value)
    await api.delete(PODS, "a", "default")
    with pytest.raises(ApiError, match='"a" not found') as missing:
        await api.get(PODS, "a", "default")
    assert is_not_found(missing.value)


async def test_every_request_says_who_asks(api: Client, server: ScriptedServer) -> None:
    await api.list(PODS)
    assert server.headers[-1]["User-Agent"].startswith("virtfleet/")
    assert server.headers[-1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("how", [Patch.JSON, Patch.MERGE, Patch.STRATEGIC])
async def test_a_patch_says_which_kind_it_is(api: Client, server: ScriptedServer, how: Patch) -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return web.json_response({"got": await request.json()})

    server.next("PATCH", "/pods/a/status", answer)
    body = [{"op": "remove", "path": "/x"}] if how is Patch.JSON else {"x": None}
    result = await api.patch(PODS, "a", body, "default", how=how, subresource="status", dry_run=True)
    assert result == {"got": body}
    assert seen[0].headers["Content-Type"] == how
    assert seen[0].query["dryRun"] == "All"


async def test_a_deletion_carries_its_options(api: Client, server: ScriptedServer) -> None:
    bodies = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response({})

    server.next("DELETE", "/pods/a", answer, times=2)
    await api.delete(PODS, "a", "default", grace=0, propagation="Foreground", uid="u", resource_version="7")
    await api.delete(PODS, "a", "default")
    options = {"kind": "DeleteOptions", "apiVersion": "v1"}
    assert bodies == [
        {
            **options,
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u", "resourceVersion": "7"},
        },
        options,
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a?x=y", "a#b"])
async def test_a_name_cannot_lead_to_another_path(api: Client, server: ScriptedServer, name: str) -> None:
    with pytest.raises(ApiError, match="cannot be the name"):
        await api.delete(NODES, name)
    assert server.requests == []


class TestLists:
    async def test_a_list_is_read_page_by_page_and_complete(self, api: Client, server: ScriptedServer) -> None:
        for n in range(7):
            server.put(PODS, pod(f"p{n}"))
        sizes = [len(page.items) async for page in api.pages(PODS, limit=3)]
        assert sizes == [3, 3, 1]

    async def test_objects_of_a_list_know_their_kind(self, api: Client, server: ScriptedServer) -> None:
        server.put(PODS, pod("a"))
        assert [(o["kind"], o["apiVersion"]) for o in await api.list(PODS)] == [("Pod", "v1")]

    async def test_a_list_that_expires_in_the_middle_begins_again(self, api: Client, server: ScriptedServer) -> None:
        for n in range(600):
            server.put(PODS, pod(f"p{n}"))
        server.next("GET", "continue=500", status_answer(ApiError("Expired", "continue token expired")))
        assert len({o["metadata"]["name"] for o in await api.list(PODS)}) == 600
        assert "limit" not in server.requests[-1][1]

    async def test_selectors_reach_the_server(self, api: Client, server: ScriptedServer) -> None:
        assert [page async for page in api.pages(PODS, "ns", labels="a in (b, c)", fields="spec.nodeName=n")]
        path = server.requests[-1][1]
        assert "labelSelector=a+in+(b,+c)" in path
        assert "fieldSelector=spec.nodeName%3Dn" in path


class TestRepetition:
    @pytest.mark.parametrize("error", [BUSY, DOWN, ApiError("InternalError", "try again")])
    async def test_whatever_the_server_asks_to_send_again_is_sent_again(
        self, api: Client, server: ScriptedServer, error: ApiError
    ) -> None:
        server.next("POST", "/pods", status_answer(error, {"Retry-After": "0"}), times=2)
        await api.create(PODS, pod("a"))
        assert server.count("POST", "/pods") == 3

    async def test_a_wish_longer_than_our_patience_goes_to_the_caller(
        self, api: Client, server: ScriptedServer
    ) -> None:
        server.next("GET", "/pods", status_answer(BUSY, {"Retry-After": "3600"}))
        with pytest.raises(ApiError, match="busy"):
            await api.list(PODS)
        assert server.count("GET", "/pods") == 1

    async def test_an_eviction_that_a_budget_forbids_is_not_repeated(self, api: Client, server: ScriptedServer) -> None:
        server.next("POST", "/pods/a/eviction", status_answer(ApiError("TooManyRequests", "disruption budget")))
        with pytest.raises(ApiError, match="disruption budget"):
            await api.create(PODS, {}, "default", name="a", subresource="eviction")
        assert server.count("POST", "/eviction") == 1

    async def test_reads_and_idempotent_writes_survive_a_lost_connection(
        self, api: Client, server: ScriptedServer
    ) -> None:
        obj = server.put(PODS, pod("a"))
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            server.next(method, "/pods/a", hang_up, times=2)
        await api.get(PODS, "a", "default")
        await api.replace(PODS, obj)
        await api.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
        await api.delete(PODS, "a", "default")
        assert server.stored(PODS) == []

    async def test_a_write_that_was_done_and_is_repeated_shows_as_conflict_or_not_found(
        self, api: Client, server: ScriptedServer
    ) -> None:
        obj = server.put(PODS, pod("a"))
        server.next("PUT", "/pods/a", server.lose_answer)
        with pytest.raises(ApiError) as conflict:
            await api.replace(PODS, obj)
        assert is_conflict(conflict.value)
        server.next("DELETE", "/pods/a", server.lose_answer)
        with pytest.raises(ApiError) as missing:
            await api.delete(PODS, "a", "default")
        assert is_not_found(missing.value)

    async def test_a_create_whose_connection_is_lost_is_left_to_the_caller(
        self, api: Client, server: ScriptedServer
    ) -> None:
        server.next("POST", "/pods", server.lose_answer)
        with pytest.raises(ApiError, match="the connection was lost") as raised:
            await api.create(PODS, {"metadata": {"generateName": "a-", "name": "a-x1"}})
        assert raised.value.code == 503
        assert len(server.stored(PODS)) == 1

    async def test_a_json_patch_is_not_repeated_either(self, api: Client, server: ScriptedServer) -> None:
        server.next("PATCH", "/pods/a", hang_up)
        with pytest.raises(ApiError, match="the connection was lost"):
            await api.patch(PODS, "a", [{"op": "add", "path": "/x/-", "value": 1}], "default", how=Patch.JSON)
        assert server.count("PATCH", "/pods") == 1

    async def test_even_a_create_waits_for_a_server_that_restarts(self, api: Client, server: ScriptedServer) -> None:
        await server.stop()
        before = failed_attempts("create")
        creation = asyncio.create_task(api.create(PODS, pod("a")))
        await eventually(lambda: failed_attempts("create") > before)
        await server.start()
        assert (await creation)["metadata"]["name"] == "a"

    async def test_a_server_that_stays_away_is_an_error_that_names_it(self, server: ScriptedServer) -> None:
        async with Client(Config(server.url), patience=0.3) as api:
            await server.stop()
            with pytest.raises(ApiError, match=rf"GET /api/v1/pods: no connection: .*{server.port}"):
                await api.list(PODS)

    async def test_an_internal_error_goes_to_the_caller(self, api: Client, server: ScriptedServer) -> None:
        server.next("GET", "/pods", status_answer(ApiError("InternalError", 'failed calling webhook "x"')))
        with pytest.raises(ApiError, match="failed calling webhook"):
            await api.list(PODS)
        assert server.count("GET", "/pods") == 1

    async def test_what_a_proxy_answers_is_shown(self, api: Client, server: ScriptedServer) -> None:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(status=403, text="<h1>blocked by policy</h1>")

        server.next("GET", "/pods", answer)
        with pytest.raises(ApiError, match="answered 403: <h1>blocked by policy") as raised:
            await api.list(PODS)
        assert raised.value.reason == "Forbidden"


def requests(**labels: str) -> float:
    return REGISTRY.get_sample_value("kubevirt_rest_client_requests_total", labels) or 0.0


def failed_attempts(verb: str) -> float:
    return requests(verb=verb, resource="pods", code="<error>")


class TestWatches:
    async def test_changes_arrive_as_bytes_and_end_quietly(self, api: Client, server: ScriptedServer) -> None:
        first = server.put(PODS, pod("a"))
        async with api.watch(PODS, resource_version="100", timeout=5) as events:
            await eventually(lambda: server.watchers)
            server.put(PODS, pod("big", annotations={"x": "y" * 3_000_000}))
            server.bookmark()
            server.end_watches()
            seen = [event async for event in events]
        assert [event.type for event in seen] == ["ADDED", "ADDED", "BOOKMARK"]
        assert orjson.loads(seen[0].object) == first
        assert "timeoutSeconds=5" in server.requests[-1][1]
        assert "allowWatchBookmarks=true" in server.requests[-1][1]

    async def test_an_expired_version_is_gone(self, api: Client, server: ScriptedServer) -> None:
        server.compacted = 200
        with pytest.raises(ApiError) as raised:
            async with api.watch(PODS, resource_version="100") as events:
                async for _ in events:
                    pass
        assert is_gone(raised.value)

    @pytest.mark.parametrize("fault", ["silence", "drop"])
    async def test_silence_and_lost_connections_are_errors_after_which_one_resumes(
        self, api: Client, server: ScriptedServer, fault: str
    ) -> None:
        with pytest.raises(ApiError) as raised:
            async with api.watch(PODS, resource_version="100") as events:
                await eventually(lambda: server.watchers)
                if fault == "drop":
                    server.drop_watches()
                async for _ in events:
                    pass
        assert raised.value.code == 503
        assert ("gone silent" in str(raised.value)) == (fault == "silence")

    async def test_leaving_a_watch_closes_its_connection(self, api: Client, server: ScriptedServer) -> None:
        async with api.watch(PODS, resource_version="100") as events:
            server.put(PODS, pod("a"))
            async for _ in events:
                break
        request = server.watchers[0].request
        await eventually(lambda: request is not None and request.transport is None)


async def test_websockets_pass_their_protocol_and_their_frames(api: Client, server: ScriptedServer) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await ws.prepare(request)
        async for message in ws:
            await ws.send_bytes(message.data + request.query["say"].encode())
        return ws

    server.next("GET", "/console", echo)
    path = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm/console"
    async with api.websocket(path, {"say": "!"}, ["v5.channel.k8s.io", "v4.channel.k8s.io"]) as ws:
        assert ws.protocol == "v5.channel.k8s.io"
        await ws.send_bytes(b"hello")
        message = await ws.receive(timeout=10)
        assert (message.type, message.data) == (WSMsgType.BINARY, b"hello!")


async def test_a_refused_websocket_is_an_api_error(api: Client, server: ScriptedServer) -> None:
    server.next("GET", "/console", status_answer(ApiError("Forbidden", "no")))
    with pytest.raises(ApiError) as raised:
        async with api.websocket("/console"):
            pass
    assert (raised.value.code, raised.value.reason, raised.value.message) == (403, "Forbidden", "no")


async def test_raw_requests_reach_any_path(api: Client, server: ScriptedServer) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"%s %s" % (request.query_string.encode(), await request.read()))

    server.next("POST", "/version", answer)
    assert await api.request("POST", "/version", params={"a": "b c"}, body=b"x") == b"a=b c x"


async def test_warnings_are_logged_once(api: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Warning": '299 - "v1 \\"Endpoints\\" is deprecated", 299 - "and more"'}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers=headers)

    server.next("GET", "/version", answer, times=2)
    with caplog.at_level(logging.WARNING):
        await api.request("GET", "/version")
        await api.request("GET", "/version")
    assert [record.getMessage() for record in caplog.records] == [
        'the API server warns: v1 "Endpoints" is deprecated',
        "the API server warns: and more",
    ]


async def test_requests_are_counted_by_verb_resource_and_code(api: Client) -> None:
    refused = {"verb": "update", "resource": "pods/status", "code": "404"}
    made = {"verb": "create", "resource": "pods", "code": "201"}
    before = requests(**refused), requests(**made)
    with pytest.raises(ApiError):
        await api.replace(PODS, pod("nobody"), subresource="status")
    await api.create(PODS, pod("counted"))
    assert (requests(**refused), requests(**made)) == (before[0] + 1, before[1] + 1)
