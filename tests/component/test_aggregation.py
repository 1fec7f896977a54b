"""Aggregated API servers: who they are told is asking, when they are available, and how clients find them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from access_plane import LIFESPAN, Plane, bundle, plane, until
from aiohttp import web
from cryptography import x509

from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, subject
from virtfleet.kube.resource import API_SERVICES, SERVICES, Obj

GROUP = "subresources.example.com"
ROOT = f"/apis/{GROUP}/v1"
SERVICE = "gateway"


class Gateway:
    """An aggregated server that believes whoever has the front proxy's certificate."""

    def __init__(self, server: Plane) -> None:
        self._server = server
        self.authority = Authority.create("gateway", LIFESPAN)
        self.healthy = True
        self.seen: list[web.Request] = []
        self.port = 0

    async def start(self) -> None:
        clients = self._server.pki.front_proxy_authority.bundle
        self.port = await self._server.listen(self._answer, self.authority, SERVICE, clients=clients)

    async def register(self, **spec: Any) -> None:
        service = {"namespace": "default", "name": SERVICE}
        trust: Obj = {} if spec.get("insecureSkipTLSVerify") else {"caBundle": bundle(self.authority)}
        priorities = {"groupPriorityMinimum": 1000, "versionPriority": 15}
        body = {"group": GROUP, "version": "v1", "service": service, **priorities, **trust, **spec}
        await self._server.api.create(API_SERVICES, {"metadata": {"name": f"v1.{GROUP}"}, "spec": body})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        name = subject(x509.load_der_x509_certificate(peer))[0] if peer else ""
        if name != "front-proxy-client":
            return web.Response(status=401)
        if not self.healthy:
            return web.Response(status=500)
        if request.path == ROOT:
            return web.json_response(RESOURCES)
        self.seen.append(request)
        if request.path.endswith("/console"):
            return await self._console(request)
        return web.json_response({"path": request.raw_path, "body": (await request.read()).decode()})

    async def _console(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["plain.kubevirt.io"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data[::-1])
        return socket


RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/v1",
    "resources": [
        {"name": "machines", "singularName": "machine", "namespaced": True, "kind": "Machine", "verbs": ["get"]},
        {"name": "machines/console", "singularName": "", "namespaced": True, "kind": "Machine", "verbs": ["get"]},
    ],
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


@pytest.fixture
async def gateway(server: Plane) -> Gateway:
    made = Gateway(server)
    await made.start()
    return made


async def condition(server: Plane, reason: str) -> Obj:
    """The Available condition, once it has this reason."""

    def found() -> Obj | None:
        record = server.store.get("apiregistration.k8s.io/apiservices", "", f"v1.{GROUP}")
        conditions = (orjson.loads(record.data).get("status") or {}).get("conditions") or () if record else ()
        return next((c for c in conditions if c["reason"] == reason), None)

    value: Obj = await until(found)
    return value


async def available(server: Plane, gateway: Gateway, **spec: Any) -> None:
    await server.service(SERVICE, gateway.port)
    await gateway.register(**spec)
    await condition(server, "Passed")


async def test_a_request_is_passed_on_with_the_callers_identity_and_without_what_callers_claim(
    server: Plane, gateway: Gateway
) -> None:
    await available(server, gateway)
    rule = {"verbs": ["*"], "apiGroups": [GROUP], "resources": ["*"]}
    await server.grant({"kind": "ServiceAccount", "name": "default", "namespace": "default"}, rule)
    token = await server.token("default")
    path = f"{ROOT}/namespaces/default/machines/a/restart?dryRun=All"
    forged = {
        "X_Remote_User": "root",
        "x_remote_group": "system:masters",
        "X_Remote_Extra_Scopes": "all",
        "X_Remote_Uid": "0",
    }
    answer = await server.call("PUT", path, {"now": True}, token=token, X_Own="kept", **forged)
    assert (answer.status, answer.body) == (200, {"path": path, "body": '{"now": true}'})
    headers = gateway.seen[0].headers
    assert headers.getall("X-Remote-User") == ["system:serviceaccount:default:default"]
    groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert headers.getall("X-Remote-Group") == groups
    assert headers.getall("X-Remote-Uid") != ["0"]
    extra = {name.lower() for name in headers if name.lower().startswith("x-remote-extra-")}
    assert extra == {"x-remote-extra-authentication.kubernetes.io%2fcredential-id"}
    assert headers["X-Own"] == "kept"
    assert "Authorization" not in headers


async def test_the_cluster_decides_before_the_aggregated_server_is_asked(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway)
    token = await server.token("default")
    refused = await server.call("GET", f"{ROOT}/namespaces/default/machines/a", token=token)
    assert refused.status == 403
    assert (await server.call("GET", f"{ROOT}/namespaces/default/machines/a", anonymous=True)).status == 401
    assert gateway.seen == []


async def test_nobody_else_can_speak_for_users_to_an_aggregated_server(server: Plane, gateway: Gateway) -> None:
    context = certificates.client_context(gateway.authority.bundle)
    headers = {"X-Remote-User": "root", "X-Remote-Group": "system:masters"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"https://127.0.0.1:{gateway.port}{ROOT}/machines",
            ssl=context,
            server_hostname=f"{SERVICE}.default.svc",
            headers=headers,
        ) as answer,
    ):
        assert answer.status == 401


async def test_websockets_reach_aggregated_servers(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway)
    session = await server.session(server.pki.admin)
    path = f"{ROOT}/namespaces/default/machines/a/console"
    async with session.ws_connect(path, protocols=["plain.kubevirt.io"]) as socket:
        assert socket.protocol == "plain.kubevirt.io"
        await socket.send_bytes(b"abc")
        assert (await socket.receive()).data == b"cba"


async def test_paths_that_climb_are_refused(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway)
    host, port = server.url.removeprefix("https://").split(":")
    context = certificates.client_context(server.pki.authority.bundle, server.pki.admin)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    path = f"{ROOT}/namespaces/default/machines/a/console/%2e%2e/../b"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert b" 400 " in await reader.readline()
    writer.close()
    assert gateway.seen == []


async def test_availability_follows_service_endpoints_and_answers(server: Plane, gateway: Gateway) -> None:
    await gateway.register()
    missing = await condition(server, "ServiceNotFound")
    assert missing["status"] == "False"
    assert missing["message"] == f'service/{SERVICE} in "default" is not present'
    refused = await server.call("GET", f"{ROOT}/namespaces/default/machines/a")
    assert (refused.status, refused.body["reason"]) == (503, "ServiceUnavailable")
    assert refused.body["message"] == "service unavailable"

    await server.service(SERVICE, gateway.port, ready=False)
    await condition(server, "MissingEndpoints")
    gateway.healthy = False
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    await server.call("PATCH", f"{slices}/{SERVICE}", {"endpoints": [{"addresses": ["127.0.0.1"]}]})
    failed = await condition(server, "FailedDiscoveryCheck")
    assert "500" in failed["message"]
    gateway.healthy = True
    assert (await condition(server, "Passed"))["status"] == "True"
    assert (await server.call("GET", f"{ROOT}/namespaces/default/machines/a")).status == 200

    await server.call("DELETE", f"{slices}/{SERVICE}")
    await condition(server, "EndpointsNotFound")
    await server.api.delete(SERVICES, SERVICE, "default")
    await condition(server, "ServiceNotFound")


async def test_a_server_with_another_authoritys_certificate_is_not_available(server: Plane, gateway: Gateway) -> None:
    await server.service(SERVICE, gateway.port)
    await gateway.register(caBundle=bundle(Authority.create("other", LIFESPAN)))
    assert "certificate verify failed" in (await condition(server, "FailedDiscoveryCheck"))["message"]


async def test_verification_can_be_switched_off(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway, insecureSkipTLSVerify=True)
    assert (await server.call("GET", f"{ROOT}/namespaces/default/machines/a")).status == 200


async def test_clients_discover_what_aggregated_servers_serve(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway)
    groups = (await server.call("GET", "/apis")).body["groups"]
    assert GROUP in [group["name"] for group in groups]
    assert (await server.call("GET", ROOT)).body == RESOURCES

    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    found = (await server.call("GET", "/apis", Accept=accept)).body["items"]
    [group] = [g for g in found if g["metadata"]["name"] == GROUP]
    [version] = group["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    kind = {"group": GROUP, "version": "v1", "kind": "Machine"}
    assert version["resources"] == [
        {
            "resource": "machines",
            "responseKind": kind,
            "scope": "Namespaced",
            "singularResource": "machine",
            "verbs": ["get"],
            "subresources": [{"subresource": "console", "responseKind": kind, "verbs": ["get"]}],
        }
    ]


async def test_a_removed_apiservice_is_forgotten(server: Plane, gateway: Gateway) -> None:
    await available(server, gateway)
    await server.call("DELETE", f"/apis/apiregistration.k8s.io/v1/apiservices/v1.{GROUP}")
    assert (await server.call("GET", f"{ROOT}/namespaces/default/machines/a")).status == 404
    groups = (await server.call("GET", "/apis")).body["groups"]
    assert GROUP not in [group["name"] for group in groups]
