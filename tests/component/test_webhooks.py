"""Webhooks over real TLS: what they may change and refuse, and what happens when they misbehave."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from access_plane import LIFESPAN, Plane, bundle, plane
from aiohttp import web

from virtfleet.kube.authority import Authority
from virtfleet.kube.resource import PODS, Obj

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
Decide = Callable[[Obj], Obj | Awaitable[Obj]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


class Hooks:
    """A webhook server behind the Service `hooks`. Decisions are made by path; `seen` has every request."""

    def __init__(self, server: Plane) -> None:
        self._server = server
        self.authority = Authority.create("hooks", LIFESPAN)
        self.decide: dict[str, Decide] = {}
        self.seen: list[tuple[str, Obj]] = []

    async def start(self) -> None:
        port = await self._server.listen(self._answer, self.authority, "hooks")
        await self._server.service("hooks", port)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["request"]
        self.seen.append((request.path, asked))
        decided = self.decide[request.path](asked)
        response = decided if isinstance(decided, dict) else await decided
        if isinstance(answer := response.get("answer"), web.Response):
            return answer
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**review, "response": {"uid": asked["uid"], "allowed": True, **response}})

    async def register(self, kind: str, name: str, decide: Decide, **fields: Any) -> None:
        """A configuration with one webhook on ConfigMaps; `fields` replace those of the webhook."""
        self.decide[f"/{name}"] = decide
        service = {"namespace": "default", "name": "hooks", "path": f"/{name}"}
        rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
        hook = {
            "name": f"{name}.example.com",
            "clientConfig": {"service": service, "caBundle": bundle(self.authority)},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            # The cluster's own ConfigMaps are none of these tests' business.
            "objectSelector": {"matchLabels": {"test": "yes"}},
            **fields,
        }
        path = f"{REGISTRATION}/{kind}webhookconfigurations"
        made = await self._server.call("POST", path, {"metadata": {"name": name}, "webhooks": [hook]})
        assert made.status == 201, made.body


@pytest.fixture
async def hooks(server: Plane) -> Hooks:
    made = Hooks(server)
    await made.start()
    return made


def config_map(name: str, **data: str) -> Obj:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": data}


def patch(*operations: Obj) -> Obj:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(operations)).decode()}


def allow(_: Obj) -> Obj:
    return {}


async def test_a_webhook_is_told_everything_about_the_write(server: Plane, hooks: Hooks) -> None:
    await hooks.register("validating", "look", allow)
    await server.call("POST", MAPS, config_map("a", x="1"))
    await server.call("PATCH", f"{MAPS}/a?dryRun=All", {"data": {"x": "2"}})
    await server.call("DELETE", f"{MAPS}/a")
    create, update, delete = (asked for _, asked in hooks.seen)
    assert create["operation"] == "CREATE"
    assert create["kind"] == create["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert create["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (create["namespace"], create["name"]) == ("default", "a")
    assert create["object"]["data"] == {"x": "1"}
    assert (create["object"]["kind"], create["object"]["apiVersion"]) == ("ConfigMap", "v1")
    assert create["oldObject"] is None
    assert create["userInfo"]["username"] == "kubernetes-admin"
    assert "system:masters" in create["userInfo"]["groups"]
    assert (update["operation"], update["dryRun"]) == ("UPDATE", True)
    assert (update["oldObject"]["data"], update["object"]["data"]) == ({"x": "1"}, {"x": "2"})
    assert (delete["operation"], delete["object"]) == ("DELETE", None)
    assert delete["oldObject"]["data"] == {"x": "1"}


async def test_mutations_are_applied_in_the_order_of_their_configurations_names(server: Plane, hooks: Hooks) -> None:
    def append(letter: str) -> Decide:
        return lambda asked: patch({"op": "replace", "path": "/data/x", "value": asked["object"]["data"]["x"] + letter})

    await hooks.register("mutating", "b-second", append("b"))
    await hooks.register("mutating", "a-first", append("a"))
    answer = await server.call("POST", MAPS, config_map("m", x=""))
    assert answer.body["data"] == {"x": "ab"}
    assert (await server.call("GET", f"{MAPS}/m")).body["data"] == {"x": "ab"}


async def test_what_a_mutation_leaves_is_validated(server: Plane, hooks: Hooks) -> None:
    await hooks.register("mutating", "m", lambda _: patch({"op": "add", "path": "/data/bad key", "value": "1"}))
    answer = await server.call("POST", MAPS, config_map("m", x=""))
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"message": "not today", "code": 403, "reason": "Forbidden"}, 403, ": not today"),
        ({"message": "not today"}, 400, ": not today"),
        ({"reason": "Invalid", "code": 422}, 422, ": Invalid"),
        ({"code": 200}, 400, " without explanation"),
    ],
)
async def test_a_refusal_is_passed_on_in_kubernetes_words(
    server: Plane, hooks: Hooks, status: Obj, code: int, message: str
) -> None:
    await hooks.register("validating", "no", lambda _: {"allowed": False, "status": status})
    answer = await server.call("POST", MAPS, config_map("m"))
    assert answer.status == answer.body["code"] == code
    assert answer.body["message"] == f'admission webhook "no.example.com" denied the request{message}'
    assert (await server.call("GET", f"{MAPS}/m")).status == 404


async def test_warnings_reach_the_client(server: Plane, hooks: Hooks) -> None:
    await hooks.register("validating", "w", lambda _: {"warnings": ["this is old"]})
    answer = await server.call("POST", MAPS, config_map("m"))
    assert answer.headers["Warning"] == '299 - "this is old"'


async def test_validating_webhooks_are_asked_at_the_same_time(server: Plane, hooks: Hooks) -> None:
    together = asyncio.Barrier(3)

    async def meet(_: Obj) -> Obj:
        async with asyncio.timeout(10):
            await together.wait()
        return {}

    for name in ("a", "b", "c"):
        await hooks.register("validating", name, meet)
    assert (await server.call("POST", MAPS, config_map("m"))).status == 201


def bad_answers() -> list[tuple[Any, str]]:
    return [
        (lambda _: {"answer": web.Response(status=500, text="broken")}, "the server answered 500: broken"),
        (lambda _: {"answer": web.Response(text="not json")}, "failed to call webhook"),
        (lambda _: {"answer": web.json_response([])}, "webhook response was absent"),
        (lambda _: {"answer": web.json_response({"kind": "AdmissionReview"})}, "webhook response was absent"),
        (lambda _: {"uid": "other"}, 'expected response.uid="'),
        (lambda asked: {"answer": web.json_response({"response": {"uid": asked["uid"]}})}, "expected webhook response"),
        (lambda _: {"patch": "W10="}, "webhook returned response.patch but not response.patchType"),
        (lambda _: {"patchType": "JSONPatch"}, "webhook returned response.patchType but not response.patch"),
        (lambda _: {"patchType": "MergePatch", "patch": "e30="}, 'unsupported patch type "MergePatch"'),
        (lambda _: {"patchType": "JSONPatch", "patch": "!"}, "received undecodable patch in webhook response"),
        (lambda _: {"answer": web.Response(status=302, headers={"Location": "/livez"})}, "the server answered 302"),
    ]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize(("decide", "message"), bad_answers())
async def test_a_bad_answer_counts_as_a_failure(
    server: Plane, hooks: Hooks, decide: Decide, message: str, policy: str
) -> None:
    await hooks.register("mutating", "bad", decide, failurePolicy=policy)
    answer = await server.call("POST", MAPS, config_map("m"))
    if policy == "Ignore":
        assert answer.status == 201
    else:
        assert (answer.status, answer.body["reason"]) == (500, "InternalError")
        prefix = 'Internal error occurred: failed calling webhook "bad.example.com": '
        assert answer.body["message"].startswith(prefix)
        assert message in answer.body["message"]


async def test_a_patch_that_does_not_fit_the_object_refuses_the_write(server: Plane, hooks: Hooks) -> None:
    misfit = patch({"op": "remove", "path": "/data/missing"})
    await hooks.register("mutating", "m", lambda _: misfit, failurePolicy="Ignore")
    answer = await server.call("POST", MAPS, config_map("m", x=""))
    assert (answer.status, answer.body["reason"]) == (500, "InternalError")


async def test_a_slow_webhook_is_given_up_at_its_own_deadline(server: Plane, hooks: Hooks) -> None:
    async def never(_: Obj) -> Obj:
        await asyncio.Event().wait()
        return {}

    await hooks.register("validating", "slow", never, timeoutSeconds=1)
    answer = await server.call("POST", MAPS, config_map("m"))
    assert answer.status == 500
    assert answer.body["message"] == (
        'Internal error occurred: failed calling webhook "slow.example.com": failed to call webhook: '
        'Post "https://hooks.default.svc:443/slow?timeout=1s": context deadline exceeded'
    )


async def test_a_webhook_with_a_certificate_of_another_authority_is_not_believed(server: Plane, hooks: Hooks) -> None:
    service = {"namespace": "default", "name": "hooks", "path": "/w"}
    other = Authority.create("other", LIFESPAN)
    await hooks.register("validating", "w", allow, clientConfig={"service": service, "caBundle": bundle(other)})
    answer = await server.call("POST", MAPS, config_map("m"))
    assert answer.status == 500
    assert "certificate" in answer.body["message"].lower()
    assert hooks.seen == []


async def test_a_webhook_whose_service_leads_nowhere_fails(server: Plane, hooks: Hooks) -> None:
    nowhere = {"service": {"namespace": "default", "name": "missing"}}
    await hooks.register("validating", "w", allow, clientConfig={**nowhere, "caBundle": bundle(hooks.authority)})
    answer = await server.call("POST", MAPS, config_map("m"))
    assert answer.status == 500
    assert 'service/missing in "default" is not present' in answer.body["message"]


@pytest.mark.parametrize("effects", ["None", "NoneOnDryRun", "Some", "Unknown"])
async def test_a_dry_run_never_reaches_a_webhook_with_side_effects(server: Plane, hooks: Hooks, effects: str) -> None:
    await hooks.register("validating", "w", allow)
    storage = "admissionregistration.k8s.io/validatingwebhookconfigurations"
    record = server.store.get(storage, "", "w")
    assert record is not None
    stored = orjson.loads(record.data)
    stored["webhooks"][0]["sideEffects"] = effects
    # Straight to the store, because this version of the API takes only webhooks that are safe.
    await server.store.write(storage, "", "w", stored, base=record)
    answer = await server.call("POST", f"{MAPS}?dryRun=All", config_map("m"))
    if effects in ("None", "NoneOnDryRun"):
        assert (answer.status, len(hooks.seen)) == (201, 1)
    else:
        assert (answer.status, len(hooks.seen)) == (400, 0)
        assert answer.body["message"] == 'admission webhook "w.example.com" does not support dry run'


@pytest.mark.parametrize(("expression", "asked"), [("object.metadata.name == 'm'", 1), ("request.name == 'other'", 0)])
async def test_a_webhook_is_asked_where_its_conditions_hold(
    server: Plane, hooks: Hooks, expression: str, asked: int
) -> None:
    await hooks.register("validating", "w", allow, matchConditions=[{"name": "c", "expression": expression}])
    assert (await server.call("POST", MAPS, config_map("m"))).status == 201
    assert len(hooks.seen) == asked


@pytest.mark.parametrize(("policy", "status"), [("Fail", 403), ("Ignore", 201)])
async def test_a_condition_without_an_answer_is_a_failure(
    server: Plane, hooks: Hooks, policy: str, status: int
) -> None:
    condition = {"name": "c", "expression": "object.data.missing == 'x'"}
    await hooks.register("validating", "w", allow, matchConditions=[condition], failurePolicy=policy)
    assert (await server.call("POST", MAPS, config_map("m", x="1"))).status == status
    assert hooks.seen == []


async def test_an_eviction_is_shown_to_webhooks_before_budgets_are_looked_at(server: Plane, hooks: Hooks) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await server.api.create(PODS, pod, "default")
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}
    answer: Obj = {"allowed": False, "status": {"code": 429, "reason": "TooManyRequests", "message": "it moves"}}
    await hooks.register("validating", "w", lambda _: answer, rules=[rule], objectSelector={})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}}
    path = "/api/v1/namespaces/default/pods/p/eviction"
    refused = await server.call("POST", f"{path}?dryRun=All", eviction)
    assert (refused.status, refused.body["reason"]) == (429, "TooManyRequests")
    assert refused.body["message"] == 'admission webhook "w.example.com" denied the request: it moves'
    asked = hooks.seen[0][1]
    assert asked["kind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (asked["subResource"], asked["name"], asked["dryRun"]) == ("eviction", "p", True)
    assert (asked["object"]["apiVersion"], asked["object"]["kind"]) == ("policy/v1", "Eviction")
    answer = {}
    assert (await server.call("POST", path, eviction)).status == 201
    assert (await server.call("GET", "/api/v1/namespaces/default/pods/p")).status == 404


async def test_webhooks_cannot_guard_their_own_removal(server: Plane, hooks: Hooks) -> None:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}
    deny = {"allowed": False}
    await hooks.register("validating", "all", lambda _: deny, rules=[rule], objectSelector={})
    assert (await server.call("POST", MAPS, config_map("m"))).status == 400
    assert (await server.call("DELETE", f"{REGISTRATION}/validatingwebhookconfigurations/all")).status == 200
    assert (await server.call("POST", MAPS, config_map("m"))).status == 201


async def test_connections_are_kept_and_a_webhook_server_may_restart(server: Plane, hooks: Hooks) -> None:
    peers: set[Any] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        uid = (await request.json())["request"]["uid"]
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**review, "response": {"uid": uid, "allowed": True}})

    port = await server.listen(answer, hooks.authority, "kept")
    await server.service("kept", port)
    service = {"namespace": "default", "name": "kept"}
    await hooks.register(
        "validating", "w", allow, clientConfig={"service": service, "caBundle": bundle(hooks.authority)}
    )
    for i in range(5):
        assert (await server.call("POST", MAPS, config_map(f"m{i}"))).status == 201
    assert len(peers) == 1

    # The pod is replaced: same Service, another endpoint.
    another = await server.listen(answer, hooks.authority, "kept")
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kept"
    await server.call("PATCH", slices, {"ports": [{"name": "https", "port": another, "protocol": "TCP"}]})
    await server.hang_up(port)
    assert (await server.call("POST", MAPS, config_map("after"))).status == 201
    assert len(peers) == 2
