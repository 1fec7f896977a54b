"""The HTTP face: codes, headers and words of Kubernetes, for good requests and bad ones."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from apiserver_kit import Client, call, opened, pod, serving, soon

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.objects import store, watching
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.apiserver.serving import streams
from virtfleet.local.apiserver.serving.http import BODY_LIMIT

PODS = "/api/v1/namespaces/ns/pods"
WIDGETS = "/apis/example.io/v1/namespaces/ns/widgets"


async def test_objects_live_and_die(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        made = await client.ask("POST", PODS, pod("a"), status=201)
        assert await client.ask("GET", f"{PODS}/a", status=200) == made
        listed = await client.ask("GET", "/api/v1/pods", status=200)
        assert (listed["kind"], listed["apiVersion"], len(listed["items"])) == ("PodList", "v1", 1)
        assert (await client.ask("GET", "/api/v1/namespaces/empty/pods"))["items"] == []
        changed = await client.ask("PUT", f"{PODS}/a", {**made, "spec": {"image": "2"}}, status=200)
        assert changed["spec"]["image"] == "2"
        status = await client.ask("GET", f"{PODS}/a/status", status=200)
        assert status == changed
        gone = await client.ask("DELETE", f"{PODS}/a", status=200)
        assert (gone["kind"], gone["metadata"]["uid"]) == ("Pod", made["metadata"]["uid"])
        missing = await client.ask("GET", f"{PODS}/a", status=404)
        assert missing["message"] == 'pods "a" not found'
        assert missing["details"] == {"name": "a", "kind": "pods"}


async def test_a_deletion_that_has_to_wait_answers_with_the_object(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        await client.ask("POST", PODS, pod("a", nodeName="n"), status=201)
        marked = await client.ask("DELETE", f"{PODS}/a?gracePeriodSeconds=7", status=200)
        assert marked["kind"] == "Pod"
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "propagationPolicy": "Orphan"}
        held = await client.ask("DELETE", f"{PODS}/a", options, status=200)
        assert held["metadata"]["finalizers"] == ["orphan"]


async def test_patches_go_by_content_type(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        await client.ask("POST", PODS, pod("a"), status=201)
        await client.ask("POST", WIDGETS, pod("w"), status=201)
        patch = {"metadata": {"labels": {"x": "y"}}}
        merge, strategic = "application/merge-patch+json", "application/strategic-merge-patch+json"
        assert (await client.ask("PATCH", f"{PODS}/a", patch, status=200, Content_Type=strategic))["metadata"]["labels"]
        assert (await client.ask("PATCH", f"{WIDGETS}/w", patch, status=200, Content_Type=merge))["metadata"]["labels"]
        refused = await client.ask("PATCH", f"{WIDGETS}/w", patch, status=415, Content_Type=strategic)
        assert refused["message"].startswith("the body of the request was in an unknown format - accepted media types")
        await client.ask("PATCH", f"{PODS}/a", patch, status=415, Content_Type="application/json")
        await client.ask("PATCH", f"{PODS}/a", b"{", status=400, Content_Type=merge)


@pytest.mark.parametrize(
    ("body", "content", "code", "reason", "text"),
    [
        (b"{", "application/json", 400, "BadRequest", "couldn't get version/kind; json parse error"),
        (b"", "application/json", 400, "BadRequest", "json parse error"),
        (b"[]", "application/json", 400, "BadRequest", "a Pod is a JSON object"),
        (b'"x"', "application/json", 400, "BadRequest", "a Pod is a JSON object"),
        (b'{"metadata":NaN}', "application/json", 400, "BadRequest", "json parse error"),
        (b'{"metadata":{"name":"\xff"}}', "application/json", 400, "BadRequest", "json parse error"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "application/json", 400, "BadRequest", "json parse error"),
        (b"{}", "application/cbor", 415, "UnsupportedMediaType", "in an unknown format"),
        (b"{}", "text/plain", 415, "UnsupportedMediaType", "in an unknown format"),
        (b'{"kind":"Node"}', "application/json", 400, "BadRequest", "does not match the expected kind"),
    ],
)
async def test_bodies_that_make_no_sense_are_refused(
    tmp_path: Path, body: bytes, content: str, code: int, reason: str, text: str
) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        answer = await client.ask("POST", PODS, body, status=code, Content_Type=content)
        assert (answer["kind"], answer["reason"], answer["code"]) == ("Status", reason, code)
        assert text in answer["message"]


async def test_a_mistake_of_the_server_is_not_taken_for_one_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(*_: object, **__: object) -> None:
        raise TypeError("unsupported operand")

    async with opened(tmp_path) as operations, serving(operations) as client:
        monkeypatch.setattr(operations, "create", mistaken)
        answer = await client.ask("POST", PODS, pod("a"), status=500)
        assert answer["message"] == "Internal error occurred: unsupported operand"


async def test_a_body_beyond_the_limit_is_too_large(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        big = orjson.dumps({"metadata": {"name": "a"}, "spec": {"image": "x" * BODY_LIMIT}})
        answer = await client.ask("POST", PODS, big, status=413)
        assert answer["reason"] == "RequestEntityTooLarge"
        assert answer["message"] == "Request entity too large: limit is 3145728"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/frobs", 404),
        ("GET", "/apis/example.io/v9/frobs", 404),
        ("GET", f"{PODS}/a/frob", 404),
        ("GET", f"{PODS}/a/status/more", 404),
        ("GET", "/api/v1/pods/a", 404),
        ("GET", "/api/v1/namespaces/ns/namespaces/ns", 404),
        ("POST", "/apis/example.io/v1/namespaces/ns/reviews", 404),
        ("GET", "/apis/example.io/v1/namespaces/ns/reviews/ns", 404),
        ("POST", "/api/v1/pods", 405),
        ("POST", f"{PODS}/a", 405),
        ("PUT", PODS, 405),
        ("DELETE", "/api/v1/pods", 405),
        ("DELETE", f"{PODS}/a/status", 405),
        ("GET", "/apis/example.io/v1/reviews", 405),
        ("OPTIONS", PODS, 405),
        ("GET", "/api/v1/namespaces/a%2Fb/pods", 400),
        ("GET", "/api/v1//pods", 400),
        ("GET", f"{PODS}?limit=--1", 400),
        ("GET", f"{PODS}?resourceVersion=abc", 400),
        ("GET", f"{PODS}?labelSelector=%2B", 400),
        ("GET", f"{PODS}?watch=1&resourceVersionMatch=Exact", 422),
        ("GET", f"{PODS}?watch=1&sendInitialEvents=true", 422),
        ("GET", f"{PODS}?sendInitialEvents=true", 422),
        ("POST", f"{PODS}?dryRun=Some", 422),
        ("POST", f"{PODS}?fieldValidation=Some", 422),
        ("DELETE", f"{PODS}/a?propagationPolicy=Some", 422),
        ("DELETE", f"{PODS}/a?gracePeriodSeconds=soon", 400),
    ],
)
async def test_paths_methods_and_options_that_do_not_exist(tmp_path: Path, method: str, path: str, code: int) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        answer = await client.ask(method, path, b"{}", status=code)
        assert answer["kind"] == "Status"


@pytest.mark.parametrize("path", ["/apis/frob.io/v1/frobs", "/apis/frob.io/v1", "/frob"])
async def test_beyond_all_apis_there_is_not_even_a_status(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        answer = await client.session.get(path)
        assert (answer.status, await answer.text()) == (404, "404 page not found\n")


async def test_yaml_is_not_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        refused = await client.ask("POST", PODS, b"metadata: {name: a}", status=415, Content_Type="application/yaml")
        assert "application/json" in refused["message"]


async def test_unknown_fields_are_told_or_refused(tmp_path: Path) -> None:
    body = b'{"metadata":{"name":"%s"},"spec":{"image":"1","frob":1}}'
    async with opened(tmp_path) as operations, serving(operations) as client:
        await client.ask("POST", PODS, body % b"a", status=201)
        assert client.warnings == ['299 - "unknown field \\"spec.frob\\""']
        await client.ask("POST", f"{PODS}?fieldValidation=Ignore", body % b"b", status=201)
        assert client.warnings == []
        refused = await client.ask("POST", f"{PODS}?fieldValidation=Strict", body % b"c", status=400)
        assert refused["message"].endswith('strict decoding error: unknown field "spec.frob"')
        await client.ask("POST", f"{PODS}?fieldValidation=Strict", pod("e", image='x":"y":'), status=201)


async def test_more_warnings_than_headers_can_carry_are_cut(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        await client.ask("POST", PODS, pod("a", **{f"unknown{i:04}": 1 for i in range(2000)}), status=201)
        assert 50 < len(client.warnings) < 200


async def test_forms_are_negotiated(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        await client.ask("POST", PODS, pod("a"), status=201)
        table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        shown = await client.ask("GET", PODS, status=200, Accept=table)
        assert shown["kind"] == "Table"
        assert shown["rows"][0]["cells"][0] == "a"
        partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
        await client.ask("GET", PODS, status=406, Accept=partial)
        both = "application/vnd.kubernetes.protobuf,application/json"
        assert (await client.ask("GET", PODS, status=200, Accept=both))["kind"] == "PodList"
        refused = await client.ask("GET", PODS, status=406, Accept="application/vnd.kubernetes.protobuf")
        assert refused["reason"] == "NotAcceptable"


async def test_big_lists_come_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        kind = operations.kinds.find("", "v1", "pods")
        assert kind
        makings = (operations.create(kind, "ns", pod(f"p{i:04}", image="x" * 3000), call()) for i in range(350))
        await asyncio.gather(*makings)
        plain = await client.ask("GET", PODS, status=200)
        assert [item["metadata"]["name"] for item in plain["items"]] == [f"p{i:04}" for i in range(350)]


async def test_anonymous_callers_see_health_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        for path in ("/livez", "/readyz", "/healthz"):
            assert await client.ask("GET", path, status=200, X_User="anonymous") == "ok"
        assert (await client.ask("GET", "/version", status=200, X_User="anonymous"))["major"] == "1"
        for path in ("/api/v1/pods", "/metrics", "/livezzz", "/apis"):
            answer = await client.ask("GET", path, status=401, X_User="anonymous")
            assert answer["message"] == "Unauthorized"


async def test_readiness_names_what_it_waits_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        state = {"done": False}

        async def unfinished() -> str:
            return "" if state["done"] else "not ready yet"

        client.server.ready["controllers"] = unfinished
        assert "[-]controllers failed" in await client.ask("GET", "/readyz", status=500)
        assert await client.ask("GET", "/livez", status=200) == "ok"
        state["done"] = True
        assert (
            await client.ask("GET", "/readyz?verbose", status=200)
            == "[+]ping ok\n[+]controllers ok\nreadyz check passed\n"
        )


async def test_what_is_not_allowed_is_forbidden_in_kubernetes_words(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations, allowed={"get"}) as client:
        answers = {
            (
                "GET",
                PODS,
            ): 'pods is forbidden: User "eve" cannot list resource "pods" in API group "" in the namespace "ns"',
            ("GET", "/api/v1/pods?watch=true"): (
                'pods is forbidden: User "eve" cannot watch resource "pods" in API group "" at the cluster scope'
            ),
            ("PATCH", f"{WIDGETS}/w/scale"): (
                'widgets.example.io "w" is forbidden: User "eve" cannot patch resource "widgets/scale" '
                'in API group "example.io" in the namespace "ns"'
            ),
            # A websocket is asked for by GET, which who may only read is allowed.
            **{
                ("GET", f"{PODS}/p/{acting}"): (
                    f'pods "p" is forbidden: User "eve" cannot create resource "pods/{acting}" '
                    'in API group "" in the namespace "ns"'
                )
                for acting in ("attach", "exec", "portforward")
            },
        }
        for (method, path), message in answers.items():
            answer = await client.ask(method, path, status=403, X_User="eve")
            assert (answer["reason"], answer["message"]) == ("Forbidden", message)


async def test_others_answer_for_what_they_registered(tmp_path: Path) -> None:
    async def connect(request: web.Request, *, namespace: str, name: str) -> web.StreamResponse:
        return web.Response(text=f"{request.method} {namespace}/{name}")

    async def review(obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj:
        return {**obj, "status": {"user": user.name}}

    async def document(request: web.Request) -> web.StreamResponse:
        return web.Response(text="a document")

    async def aggregate(request: web.Request, group: str, version: str, user: User) -> web.StreamResponse | None:
        return web.Response(text=f"{group} {version}") if group == "sub.io" else None

    async with opened(tmp_path) as operations, serving(operations) as client:
        client.server.connectors["", "pods", "log"] = connect
        operations.posts["example.io", "reviews", ""] = review
        client.server.documents = lambda path: document if path == "/openapi/v3" else None
        client.server.aggregator = aggregate
        assert await client.ask("GET", f"{PODS}/a/log", status=200) == "GET ns/a"
        assert await client.ask("POST", f"{PODS}/a/log", status=200) == "POST ns/a"
        await client.ask("GET", f"{PODS}/a/log/x/y", status=404)
        answer = await client.ask("POST", "/apis/example.io/v1/reviews", {"spec": {}}, status=201)
        assert answer == {"spec": {}, "status": {"user": "admin"}}
        assert await client.ask("GET", "/openapi/v3", status=200) == "a document"
        for path in ("/apis/sub.io/v1", "/apis/sub.io/v1/namespaces/ns/things/x/console"):
            assert await client.ask("GET", path, status=200) == "sub.io v1"
        await client.ask("GET", "/apis/other.io/v1/things", status=404)


class Stream:
    """A watch over HTTP, event by event."""

    def __init__(self, client: Client, query: str, accept: str = "application/json") -> None:
        self._opening = client.session.get(f"{PODS}?watch=1{query}", headers={"Accept": accept})

    async def __aenter__(self) -> Stream:
        self.answer = await self._opening.__aenter__()
        assert self.answer.status == 200
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._opening.__aexit__(*error)

    async def next(self) -> tuple[str, Any]:
        line = await soon(self.answer.content.readline())
        if not line:
            return "", None
        event = orjson.loads(line)
        return event["type"], event["object"]


async def watching_clients(operations: Operations, count: int) -> None:
    async with asyncio.timeout(20):
        while len(operations.watchers) != count:  # noqa: ASYNC110 - nothing tells that a client has gone
            await asyncio.sleep(0.01)


class TestWatch:
    async def test_changes_stream_as_they_happen(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations, serving(operations) as client:
            await client.ask("POST", PODS, pod("a"), status=201)
            async with Stream(client, "") as stream:
                assert (await stream.next())[0] == "ADDED"
                made = await client.ask("POST", PODS, pod("b"), status=201)
                assert await stream.next() == ("ADDED", made)
                await client.ask("DELETE", f"{PODS}/b", status=200)
                assert (await stream.next())[0] == "DELETED"
            async with Stream(client, f"&resourceVersion={made['metadata']['resourceVersion']}") as resumed:
                assert (await resumed.next())[0] == "DELETED"

    async def test_initial_events_bookmark_and_timeout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "BOOKMARK_SECONDS", 0.2)
        async with opened(tmp_path) as operations, serving(operations) as client:
            await client.ask("POST", PODS, pod("a"), status=201)
            query = (
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
            )
            async with Stream(client, query) as stream:
                assert (await stream.next())[0] == "ADDED"
                event_type, mark = await stream.next()
                assert event_type == "BOOKMARK"
                assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                event_type, later = await stream.next()
                assert (event_type, later["metadata"]["resourceVersion"]) == (
                    "BOOKMARK",
                    str(operations.store.revision),
                )
                while event_type:
                    event_type, _ = await stream.next()
            await watching_clients(operations, 0)

    async def test_history_that_is_gone_is_an_error_event(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "WINDOW", 10)
        async with opened(tmp_path) as operations:
            kind = operations.kinds.find("", "v1", "pods")
            assert kind
            for i in range(30):
                await operations.create(kind, "ns", pod(f"p{i}"), call())
        async with (
            opened(tmp_path) as operations,
            serving(operations) as client,
            Stream(client, "&resourceVersion=2") as stream,
        ):
            event_type, status = await stream.next()
            assert (event_type, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
            assert status["message"].startswith("too old resource version: 2 (")
            assert await stream.next() == ("", None)

    async def test_tables_can_be_watched(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations, serving(operations) as client:
            await client.ask("POST", PODS, pod("a"), status=201)
            async with Stream(client, "", "application/json;as=Table;v=v1;g=meta.k8s.io") as stream:
                event_type, table = await stream.next()
                assert (event_type, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "a")

    async def test_a_client_that_went_away_is_noticed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "BOOKMARK_SECONDS", 0.05)
        async with opened(tmp_path) as operations, serving(operations) as client:
            async with Stream(client, ""):
                await watching_clients(operations, 1)
            await watching_clients(operations, 0)

    async def test_a_client_that_goes_amidst_events_is_no_error(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(tmp_path) as operations, serving(operations) as client:
            for i in range(5):
                _, writer = await asyncio.open_connection("127.0.0.1", client.port)
                writer.write(f"GET {PODS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await watching_clients(operations, 1)
                writer.transport.abort()
                while len(operations.watchers):
                    name = f"p{i}-{operations.store.revision}"
                    await client.ask("POST", PODS, pod(name, image="x" * 100_000), status=201)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    async def test_stopping_the_server_ends_watches(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations, serving(operations) as client, Stream(client, "") as stream:
            await watching_clients(operations, 1)
            await client.server.stop()
            assert await stream.next() == ("", None)

    async def test_a_client_that_does_not_read_is_cut_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "QUEUE_LIMIT", 20)
        async with opened(tmp_path) as operations, serving(operations) as client:
            kind = operations.kinds.find("", "v1", "pods")
            assert kind
            _, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
            writer.write(f"GET {PODS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await watching_clients(operations, 1)
            async with asyncio.timeout(60):
                for i in range(2000):
                    await operations.create(kind, "ns", pod(f"p{i}", image="x" * 200_000), call(dry_run=False))
                    if not len(operations.watchers):
                        break
            await watching_clients(operations, 0)
            writer.close()

    @pytest.mark.slow
    async def test_five_hundred_watchers_all_see_everything(self, tmp_path: Path) -> None:
        async with opened(tmp_path) as operations, serving(operations) as client:
            changes = 20

            async def watch() -> int:
                reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
                writer.write(f"GET {PODS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                seen = b""
                while seen.count(b'"type":"ADDED"') < changes:
                    seen += await soon(reader.read(1 << 16), 60)
                writer.close()
                return seen.count(b'"type":"ADDED"')

            watchers = [asyncio.create_task(watch()) for _ in range(500)]
            await watching_clients(operations, 500)
            for i in range(changes):
                await client.ask("POST", PODS, pod(f"p{i}"), status=201)
            assert await asyncio.gather(*watchers) == [changes] * 500


APPLY = {"Content_Type": "application/apply-patch+yaml"}


async def test_an_apply_makes_what_is_not_there_for_those_who_may_create(tmp_path: Path) -> None:
    async with opened(tmp_path) as operations, serving(operations, {"patch"}) as client:
        refused = await client.ask("PATCH", f"{PODS}/a?fieldManager=m", pod("a"), status=403, **APPLY)
        assert "cannot create resource" in refused["message"]
    async with opened(tmp_path) as operations, serving(operations) as client:
        made = await client.ask("PATCH", f"{PODS}/a?fieldManager=m", pod("a"), status=201, **APPLY)
        assert [m["manager"] for m in made["metadata"]["managedFields"]] == ["m"]
        await client.ask("PATCH", f"{PODS}/a?fieldManager=m", pod("a"), status=200, **APPLY)


@pytest.mark.parametrize(
    ("query", "body", "code", "words"),
    [
        ("", pod("a"), 422, "fieldManager: Required value"),
        ("fieldManager=m", b"spec: {image: i}", 400, "error decoding patch"),
        ("fieldManager=m", [1], 400, "a JSON object"),
        ("fieldManager=m", pod("b"), 400, "does not match the name on the URL"),
        ("fieldManager=m", {"metadata": {"name": "a", "managedFields": [{}]}}, 400, "managedFields must be nil"),
        ("fieldManager=m", {**pod("a"), "kind": "Secret"}, 400, "does not match the expected kind"),
        ("fieldManager=m", pod("a", nonsense=1), 500, ".spec.nonsense: field not declared in schema"),
        (f"fieldManager={'m' * 129}", pod("a"), 422, "fieldManager: Too long"),
        ("fieldManager=m", b'{"a":' * 900 + b"1" + b"}" * 900, 400, "nested too deeply"),
    ],
)
async def test_an_apply_that_makes_no_sense_says_why(
    tmp_path: Path, query: str, body: Any, code: int, words: str
) -> None:
    async with opened(tmp_path) as operations, serving(operations) as client:
        refused = await client.ask("PATCH", f"{PODS}/a?{query}", body, status=code, **APPLY)
        assert words in refused["message"]


async def test_a_webhook_or_a_writer_cannot_make_up_who_manages_what(tmp_path: Path) -> None:
    entry = {"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": 7}}
    async with opened(tmp_path) as operations, serving(operations) as client:
        made = await client.ask("POST", PODS, {"metadata": {"name": "n", "managedFields": [entry]}}, status=201)
        assert "managedFields" not in made["metadata"]
        applied = await client.ask("PATCH", f"{PODS}/a?fieldManager=m", pod("a"), status=201, **APPLY)
        forged = {**applied, "metadata": {**applied["metadata"], "managedFields": [entry]}}
        kept = await client.ask("PUT", f"{PODS}/a", forged, status=200)
        assert kept["metadata"]["managedFields"] == applied["metadata"]["managedFields"]
