"""virt-api behind a real API server: aggregation, RBAC and TLS are real, the virt-handlers pretend.

virt-api works with its own service account and the rights of the operator's roles alone, and with certificates as the
operator issues them. A pretend handler answers at an address of its own, so that it can be known which node was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from component.access_plane import Answer, Plane, plane, until
from component.defined import define
from virtfleet.api.subresources import GROUP, PROTOCOL
from virtfleet.gateway import __main__ as virt_api
from virtfleet.gateway.handlers import Handlers
from virtfleet.gateway.knowledge import Knowledge
from virtfleet.installation import Installation
from virtfleet.kube import certificates, component, peers
from virtfleet.kube.certificates import Credential
from virtfleet.kube.component import ADMISSION_KEY
from virtfleet.kube.resource import (
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ENDPOINT_SLICES,
    KUBEVIRTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    VMIS,
    VMS,
    Obj,
    Resource,
)
from virtfleet.operator import certificates as issuing
from virtfleet.operator import endpoints, roles

NAMESPACE = "kubevirt"
ROOT = f"/apis/{GROUP}/v1"
NODE = "node01"
_RESOURCES = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, SERVICES, API_SERVICES)


@dataclass
class Seen:
    """One request as a handler got it."""

    method: str
    path: str
    query: str
    body: bytes
    caller: str
    headers: dict[str, str]


@dataclass
class PretendHandler:
    """Answers as virt-handlers do: streams echo in capitals, commands are taken, questions get `answer`."""

    address: str
    seen: list[Seen] = field(default_factory=list)
    answer: Obj = field(default_factory=lambda: {"hostname": "guest"})
    refusal: tuple[int, Obj] | None = None
    on_open: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None
    silent: asyncio.Event | None = None
    """What it waits for before it answers."""
    open: int = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        peer = peers.verified(request)
        body = await request.read()
        caller = peer.name if peer else ""
        self.seen.append(Seen(request.method, request.path, request.query_string, body, caller, dict(request.headers)))
        if self.silent:
            await self.silent.wait()
        if self.refusal:
            return web.json_response(self.refusal[1], status=self.refusal[0])
        if request.path.endswith(("/console", "/vnc")):
            return await self._echo(request)
        if request.path.endswith("/vnc/screenshot"):
            return web.Response(body=b"\x89PNG", content_type="image/png")
        return web.json_response(self.answer) if request.method == "GET" else web.Response(status=202)

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        stream = web.WebSocketResponse(protocols=[PROTOCOL])
        await stream.prepare(request)
        self.open += 1
        try:
            if self.on_open:
                await self.on_open(stream)
            async for message in stream:
                if message.data == b"bye":
                    break
                await stream.send_bytes(message.data.upper())
        finally:
            self.open -= 1
        await stream.close(message=b"the guest is gone")
        return stream


@dataclass
class Kit:
    server: Plane
    port: int
    handler_port: int
    credentials: dict[str, Credential]
    task: asyncio.Task[None]
    made: list[Handlers]
    admission_key: str
    webhooks: list[Obj] = field(default_factory=list)
    knowledge: list[Knowledge] = field(default_factory=list)
    handlers: dict[str, PretendHandler] = field(default_factory=dict)

    @property
    def handler(self) -> PretendHandler:
        return self.handlers[NODE]

    # --- the cluster

    async def guard(self) -> None:
        """Let admission decide from now on; until then objects of tests need not be sound."""
        for obj in self.webhooks:
            resource = MUTATING_WEBHOOKS if obj["kind"] == MUTATING_WEBHOOKS.kind else VALIDATING_WEBHOOKS
            await self.make(resource, obj)

    async def configure(self, spec: Obj) -> None:
        """Another spec for the KubeVirt object, until virt-api knows of it."""
        kubevirt = await self.server.api.get(KUBEVIRTS, "kubevirt", NAMESPACE)
        changed = await self.server.api.replace(KUBEVIRTS, {**kubevirt, "spec": spec})
        version = changed["metadata"]["resourceVersion"]
        await until(lambda: self.knowledge[0].cluster().kubevirt["metadata"]["resourceVersion"] == version)

    async def make(self, resource: Resource, obj: Obj, namespace: str | None = None) -> Obj:
        return await self.server.api.create(resource, obj, namespace)

    async def vmi(self, name: str = "vm", *, phase: str = "Running", conditions: Any = (), **fields: Any) -> Obj:
        """A VMI of the namespace default; `fields` are of its spec, `status` of its status."""
        status = {
            "phase": phase,
            "nodeName": NODE,
            "conditions": [{"type": kind, "status": "True"} for kind in conditions],
            **fields.pop("status", {}),
        }
        metadata = {"name": name, "namespace": "default", **fields.pop("metadata", {})}
        spec = {"domain": {"devices": fields.pop("devices", {})}, **fields}
        return await self.make(VMIS, {"metadata": metadata, "spec": spec, "status": status}, "default")

    async def guest(self, name: str = "vm", *, address: str = "127.0.0.1", **fields: Any) -> Obj:
        """A VMI with an interface, and its launcher's Pod at an address."""
        made = await self.vmi(name, **fields)
        pod = await self.launcher(made, address)
        status = {"interfaces": [{"ipAddress": "10.1.2.3"}], "activePods": {pod["metadata"]["uid"]: NODE}}
        return await self.server.api.patch(VMIS, name, {"status": status}, "default")

    async def launcher(self, vmi: Obj, address: str, *, name: str = "", **spec: Any) -> Obj:
        labels = {"kubevirt.io/created-by": vmi["metadata"]["uid"]}
        name = name or f"virt-launcher-{vmi['metadata']['name']}"
        spec = {"nodeName": NODE, "containers": [{"name": "compute", "image": "virt-launcher"}], **spec}
        await self.make(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec}, "default")
        status = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.7", "phase": "Running"}
        return await self.server.api.patch(PODS, name, {"status": status}, "default", subresource="status")

    async def vm(self, name: str = "vm", *, status: Obj | None = None, **spec: Any) -> Obj:
        """A VM of the namespace default, Halted unless it is said otherwise."""
        if "running" not in spec:
            spec.setdefault("runStrategy", "Halted")
        spec.setdefault("template", {"spec": {"domain": {"devices": {}}}})
        made = await self.make(VMS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}, "default")
        if status:
            made = await self.server.api.patch(VMS, name, {"status": status}, "default", subresource="status")
        return made

    async def started(self, name: str = "vm", *, phase: str = "Running", **spec: Any) -> tuple[Obj, Obj]:
        """A VM and the instance that it runs."""
        vm = await self.vm(name, status={"created": True}, **spec)
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm["metadata"]["uid"]}
        vmi = await self.vmi(name, phase=phase, metadata={"ownerReferences": [{**owner, "controller": True}]})
        return vm, vmi

    async def get(self, resource: Resource, name: str = "vm") -> Obj:
        return await self.server.api.get(resource, name, "default")

    async def user(self, name: str, role: str = "", namespace: str = "default") -> str:
        """A service account's token, with a role in one namespace if one is given."""
        await self.make(SERVICE_ACCOUNTS, {"metadata": {"name": name, "namespace": "default"}}, "default")
        if role:
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
            binding = {"metadata": {"name": name, "namespace": namespace}, "roleRef": ref, "subjects": [subject]}
            await self.make(ROLE_BINDINGS, binding, namespace)
        return await self.server.token(name)

    # --- requests

    async def call(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Answer:
        """Below the group's first version, through the API server, as its administrator unless told otherwise."""
        return await self.server.call(method, path if path.startswith("/") else f"{ROOT}/{path}", body, **kwargs)

    async def of_vm(self, subresource: str, body: Any = None, name: str = "vm", **kwargs: Any) -> Answer:
        method = kwargs.pop("method", "PUT")
        return await self.call(method, f"namespaces/default/virtualmachines/{name}/{subresource}", body, **kwargs)

    async def of_vmi(self, subresource: str, body: Any = None, name: str = "vm", **kwargs: Any) -> Answer:
        path = f"namespaces/default/virtualmachineinstances/{name}/{subresource}"
        return await self.call(kwargs.pop("method", "PUT"), path, body, **kwargs)

    @asynccontextmanager
    async def stream(self, path: str, token: str = "") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A websocket of an object of the namespace default, as virtctl opens it."""
        session = await self.server.session(None if token else self.server.pki.admin)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{ROOT}/namespaces/default/{path}"
        async with session.ws_connect(url, protocols=[PROTOCOL], headers=headers) as stream:
            yield stream

    @asynccontextmanager
    async def directly(self, credential: Credential | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        """A session with virt-api itself, past the API server."""
        context = certificates.client_context(self.credentials["virt-api"].bundle, credential)
        context.check_hostname = False  # it is called by its address here
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=connector) as session:
            yield session

    # --- handlers

    async def add_handler(
        self, node: str, address: str, credential: Credential | None = None, *, ready: bool = True, started: bool = True
    ) -> PretendHandler:
        """A handler for a node, and its Pod. It has a handler's certificate unless another one is given."""
        made = self.handlers[node] = PretendHandler(address)
        own = credential or self.credentials["virt-handler"]
        context = certificates.server_context(own, clients=self.credentials["virt-handler"].bundle)
        runner = await listen(made.serve, address, self.handler_port, context)
        self.server.stack.push_async_callback(runner.cleanup)
        await self.add_handler_pod(node, address, ready=ready, started=started)
        return made

    async def add_handler_pod(self, node: str, address: str, *, ready: bool = True, started: bool = True) -> None:
        metadata = {"name": f"virt-handler-{node}", "labels": {"kubevirt.io": "virt-handler"}}
        spec = {"nodeName": node, "containers": [{"name": "virt-handler", "image": "virt-handler"}]}
        pod = await self.make(PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": conditions}
        container = {"name": "virt-handler", "image": "", "imageID": "", "restartCount": 0, "ready": ready}
        status["containerStatuses"] = [{**container, "started": started}]
        name = pod["metadata"]["name"]
        await self.server.api.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")
        await until(lambda: self.made and (pod := self.made[0].pods.get(f"{NAMESPACE}/{name}")) and pod.status.pod_ip)


async def listen(handler: Any, address: str, port: int, context: Any) -> web.AppRunner:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=context).start()
    return runner


def free_port(address: str = "127.0.0.1") -> int:
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])


@asynccontextmanager
async def gateway(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    """A cluster with virt-api and the handler of one node. What virt-api knows of handlers is kept, to wait for it."""
    define(directory / "store")
    async with plane(directory) as server:
        await _install_kubevirt(server)
        installation = Installation({"metadata": {"name": "kubevirt", "namespace": NAMESPACE}})
        issued = issuing.issue(installation, {}, datetime.now(UTC))
        credentials = _credentials(issued.objects)
        port, handler_port = free_port(), free_port("127.0.0.2")
        await _install(server, [*roles.render(installation), *endpoints.services(installation)])
        files = {**credentials["virt-api"].files(), ADMISSION_KEY: issued.admission_key.encode()}
        certificates.write(directory / "virt-api", files)
        options = argparse.Namespace(
            kubeconfig=await _kubeconfig(server, directory),
            certificates=directory / "virt-api",
            host="127.0.0.1",
            port=port,
            namespace=NAMESPACE,
            handler_port=handler_port,
        )
        monkeypatch.setattr(component, "FAREWELL", 0.0)  # nobody here has to learn that it ends
        made: list[Handlers] = []
        monkeypatch.setattr(virt_api, "Handlers", lambda *args: made.append(Handlers(*args)) or made[0])
        knowledge: list[Knowledge] = []
        monkeypatch.setattr(virt_api, "Knowledge", lambda api: knowledge.append(Knowledge(api)) or knowledge[0])
        task = asyncio.create_task(virt_api.run(options))
        kit = Kit(server, port, handler_port, credentials, task, made, issued.admission_key, knowledge=knowledge)
        try:
            await kit.add_handler(NODE, "127.0.0.2")
            await _ready(kit)
            await _publish(server, port)
            admission = endpoints.admission(installation, issued.trust, issued.admission_key)
            await _install(server, admission)
            kit.webhooks = [obj for obj in admission if "Webhook" in obj["kind"]]
            await until(lambda: all(s.available for s in server.aggregation._services.values()))
            yield kit
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _install_kubevirt(server: Plane) -> None:
    await server.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    kubevirt = {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": {}}
    await server.api.create(KUBEVIRTS, kubevirt, NAMESPACE)


async def _install(server: Plane, objects: list[Obj]) -> None:
    by_kind = {resource.kind: resource for resource in _RESOURCES}
    for obj in objects:
        if resource := by_kind.get(obj["kind"]):
            await server.api.create(resource, obj, obj["metadata"].get("namespace"))


async def _publish(server: Plane, port: int) -> None:
    """Where the Service virt-api leads."""
    await server.api.create(
        ENDPOINT_SLICES,
        {
            "metadata": {"name": "virt-api", "labels": {"kubernetes.io/service-name": "virt-api"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        },
        NAMESPACE,
    )


def _credentials(objects: list[Obj]) -> dict[str, Credential]:
    found = {}
    for obj in objects:
        name = obj["metadata"]["name"]
        if obj["kind"] == "Secret" and name.endswith("-certs"):
            credential = Credential.of({k: base64.b64decode(v) for k, v in obj["data"].items()})
            assert credential is not None
            found[name.removeprefix("kubevirt-").removesuffix("-certs")] = credential
    return found


async def _kubeconfig(server: Plane, directory: Path) -> Path:
    token = await server.token(roles.API, NAMESPACE)
    authority = base64.b64encode(server.pki.authority.bundle).decode()
    path = directory / "virt-api.kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority-data": authority}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    return path


async def _ready(kit: Kit) -> None:
    async with asyncio.timeout(30), kit.directly() as session:
        while not kit.task.done():
            try:
                async with session.get("/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectorError:
                pass
            await asyncio.sleep(0.02)
        kit.task.result()
