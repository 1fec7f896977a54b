"""An API server on a real TLS socket with everything that guards it, for tests of who may do what."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from virtfleet.kube import certificates
from virtfleet.kube.authority import SETTLE, Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential, RotatingContext
from virtfleet.kube.resource import ENDPOINT_SLICES, SERVICES, Obj
from virtfleet.local.apiserver.bootstrap import Front, NamespaceDefaults, bootstrap
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.extensions.admission import Chain
from virtfleet.local.apiserver.extensions.aggregation import Aggregation
from virtfleet.local.apiserver.extensions.policies import Policies
from virtfleet.local.apiserver.extensions.webhooks import Webhooks
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.escalation import EscalationGuard
from virtfleet.local.apiserver.rights.identity import Identity, listening_context
from virtfleet.local.apiserver.rights.pki import Pki
from virtfleet.local.apiserver.rights.rbac import AggregatedRoles, Authorizer
from virtfleet.local.apiserver.rights.reviews import Reviews
from virtfleet.local.apiserver.rights.tokens import ServiceAccountTokens
from virtfleet.local.apiserver.serving.discovery import Discovery
from virtfleet.local.apiserver.serving.http import Server
from virtfleet.local.apiserver.serving.openapi import OpenApi
from virtfleet.local.controllers.podposts import evict

DEADLINE = 20.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Answer:
    status: int
    body: Any
    headers: Any


@dataclass
class Plane:
    """`call` speaks to the server as the administrator unless told otherwise."""

    url: str
    pki: Pki
    store: Store
    api: InProcessApi
    aggregation: Aggregation
    tokens: ServiceAccountTokens
    stack: AsyncExitStack
    _sessions: dict[bytes, aiohttp.ClientSession] = field(default_factory=dict)
    _listening: dict[int, web.AppRunner] = field(default_factory=dict)

    async def session(self, credential: Credential | None) -> aiohttp.ClientSession:
        key = credential.certificate if credential else b""
        if key not in self._sessions:
            context = certificates.client_context(self.pki.authority.bundle, credential)
            session = aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(ssl=context))
            self._sessions[key] = await self.stack.enter_async_context(session)
        return self._sessions[key]

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str = "", anonymous: bool = False, **headers: str
    ) -> Answer:
        session = await self.session(None if token or anonymous else self.pki.admin)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if method == "PATCH":
            sent["Content-Type"] = "application/merge-patch+json"
        async with session.request(method, path, json=body, headers=sent) as answer:
            text = await answer.read()
            read = await answer.json() if "json" in answer.headers.get("Content-Type", "") else text.decode()
            return Answer(answer.status, read, answer.headers)

    async def token(self, account: str, namespace: str = "default", **spec: Any) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = await self.call("POST", path, {"spec": spec})
        assert answer.status == 201, answer.body
        return str(answer.body["status"]["token"])

    async def grant(self, subject: Obj, *rules: Obj, name: str = "granted") -> None:
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        role = await self.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
        assert role.status == 201, role.body
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]}
        bound = await self.call("POST", f"{rbac}/clusterrolebindings", binding)
        assert bound.status == 201, bound.body

    async def service(self, name: str, port: int, *, ready: bool = True) -> None:
        """A Service of the namespace default whose only endpoint is a port of this machine."""
        meta = {"name": name, "namespace": "default"}
        spec = {"ports": [{"name": "https", "port": 443, "targetPort": port}]}
        await self.api.create(SERVICES, {"metadata": meta, "spec": spec}, "default")
        await self.api.create(
            ENDPOINT_SLICES,
            {
                "metadata": {**meta, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            },
            "default",
        )

    async def listen(self, handler: Handler, authority: Authority, name: str, *, clients: bytes | None = None) -> int:
        """Serve a handler with a certificate for a Service of the namespace default; answers the port."""
        profile = Profile(name, LIFESPAN, hosts=(f"{name}.default.svc",))
        context = certificates.server_context(authority.issue(profile), clients=clients)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = int(runner.addresses[0][1])
        self._listening[port] = runner
        return port

    async def hang_up(self, port: int) -> None:
        """End what `listen` started, as a pod that goes."""
        await self._listening.pop(port).cleanup()


LIFESPAN = Lifespan(SETTLE * 6, SETTLE)


def bundle(authority: Authority) -> str:
    return base64.b64encode(authority.bundle).decode()


@asynccontextmanager
async def plane(directory: Path) -> AsyncIterator[Plane]:
    async with AsyncExitStack() as stack:
        store = Store(directory / "store")
        stack.push_async_callback(store.close)
        pki = Pki(directory)
        session = await stack.enter_async_context(services.session(store))
        kinds = Kinds()
        builtin.register(kinds, store)
        authorizer, tokens = Authorizer(store), ServiceAccountTokens(store, pki.signing_key)
        operations = Operations(
            store, kinds, Chain(EscalationGuard(authorizer), Policies(store, kinds), Webhooks(store, kinds, session))
        )
        operations.posts |= Reviews(tokens, authorizer).posts()
        api = InProcessApi(operations)
        operations.posts["", "pods", "eviction"] = partial(evict, api)
        custom_kinds = CustomKinds(kinds, operations)
        custom_kinds.load()
        server = Server(operations, kinds, Identity(tokens, authorizer), authorizer)
        server.aggregator = aggregation = Aggregation(store, api, session, lambda: pki.front_proxy)
        documents = (Discovery(kinds, aggregation.extra_groups), OpenApi(kinds))
        server.documents = lambda path: next((h for d in documents if (h := d.handler(path))), None)
        context = RotatingContext(listening_context(pki.serving, pki.authority.bundle))
        [port] = await server.start([("127.0.0.1", 0)], context.listening)
        stack.push_async_callback(server.stop)
        await bootstrap(api, pki, Front(str(IPv4Network(builtin.SERVICE_NETWORK)[1]), "127.0.0.1", port))
        controllers = (
            aggregation.controller,
            AggregatedRoles(store, api).controller,
            NamespaceDefaults(store, api, pki.authority.bundle.decode()).controller,
        )
        running = [asyncio.create_task(part.run()) for part in (custom_kinds.controller, *controllers)]
        try:
            made = Plane(f"https://127.0.0.1:{port}", pki, store, api, aggregation, tokens, stack)
            await until(lambda: store.get("/serviceaccounts", "default", "default"))
            yield made
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition of the store or of a recording, which have no event of their own."""
    async with asyncio.timeout(DEADLINE):
        while not (value := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return value
