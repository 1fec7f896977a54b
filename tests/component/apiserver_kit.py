"""What tests of the local API server's core stand on: a few small kinds, a store, a server on loopback.

The kinds are as simple as they can be, so that tests of operations, lists, watches and HTTP do not depend on what
Kubernetes says about pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from virtfleet.kube.resource import NAMESPACES, PODS, Obj, Resource
from virtfleet.local.apiserver.extensions.admission import Admission
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds, Rules
from virtfleet.local.apiserver.kinds.schema import SchemaNode
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import ANONYMOUS, MASTER, Attributes, User
from virtfleet.local.apiserver.serving.http import Server

READ_WRITE = frozenset({"get", "update", "patch"})
WIDGETS = Resource("example.io", "v1", "widgets", "Widget")
WIDGETS_BETA = Resource("example.io", "v1beta1", "widgets", "Widget")


class PodSchema:
    """Knows a handful of fields: `spec` has image, nodeName, containers and ports; the rest is pruned."""

    known = frozenset({"image", "nodeName", "containers", "replicas", "tags", "finalizers"})
    root = SchemaNode(open=True)

    def shape(self, obj: Obj, stored: Obj | None = None) -> list[str]:
        spec = obj.setdefault("spec", {})
        spec.setdefault("image", "default")
        unknown = [key for key in spec if key not in self.known]
        for key in unknown:
            del spec[key]
        return [f"spec.{key}" for key in unknown]

    def validate(self, obj: Obj) -> list[Cause]:
        if not isinstance(obj["spec"]["image"], str):
            return [causes.invalid("spec.image", obj["spec"]["image"], "must be a string")]
        return []

    def openapi(self) -> dict[str, Any]:
        return {}

    def merge_key(self, path: tuple[str, ...]) -> tuple[str | None, str | None]:
        keys = {("spec", "containers"): ("merge", "name"), ("spec", "tags"): ("merge", None)}
        return keys.get(path, (None, None))


def begin_pod(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def pod_update_faults(obj: Obj, old: Obj, subresource: str) -> list[Cause]:
    if old["spec"].get("nodeName") and obj["spec"].get("nodeName") != old["spec"]["nodeName"]:
        return [causes.forbidden("spec.nodeName", "may not change once set")]
    return []


def pod_grace(obj: Obj, asked: int | None) -> int:
    if not obj["spec"].get("nodeName"):
        return 0
    return 30 if asked is None else asked


POD_RULES = Rules(selectable={"spec.nodeName": ""}, begin=begin_pod, on_update=pod_update_faults, grace=pod_grace)


def test_kinds() -> Kinds:
    kinds = Kinds()
    status = {"status": READ_WRITE}
    kinds.add(
        Kind(NAMESPACES, "namespace", "NamespaceList", subresources={**status, "finalize": frozenset({"update"})})
    )
    kinds.add(Kind(PODS, "pod", "PodList", subresources=status, schema=PodSchema(), rules=POD_RULES))
    for resource in (WIDGETS, WIDGETS_BETA):
        kinds.add(
            Kind(
                resource,
                "widget",
                "WidgetList",
                subresources={**status, "scale": READ_WRITE},
                scale={
                    "specReplicas": "spec.replicas",
                    "statusReplicas": "status.replicas",
                    "labelSelector": "status.selector",
                },
                custom=True,
            )
        )
    kinds.add(Kind(Resource("example.io", "v1", "reviews", "Review", False), "review", "", verbs=frozenset({"create"})))
    return kinds


test_kinds.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever its name says


def pod(name: str, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": spec}


def call(**more: Any) -> Call:
    return Call(MASTER, **more)


@asynccontextmanager
async def opened(directory: Path, admission: Admission | None = None) -> AsyncIterator[Operations]:
    """Operations over a store, with the namespace `ns`."""
    operations = Operations(Store(directory), test_kinds(), admission)
    namespaces = operations.kinds.find("", "v1", "namespaces")
    assert namespaces is not None
    if operations.store.get("/namespaces", "", "ns") is None:
        await operations.create(namespaces, "", {"metadata": {"name": "ns"}}, call())
    try:
        yield operations
    finally:
        await operations.store.close()


class Client:
    """HTTP to a test server; `user` is sent in a header that its authenticator believes."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, port: int) -> None:
        self.session, self.server, self.port = session, server, port
        self.warnings: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None, *, status: int | None = None, **headers: str) -> Any:
        """The decoded answer; `status` is asserted. `content_type="..."` and the like become headers."""
        data = body if isinstance(body, bytes | None) else orjson.dumps(body)
        sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        url = URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)  # nothing on the way tidies the path up
        async with self.session.request(method, url, data=data, headers=sent) as answer:
            content = await answer.read()
            self.warnings = answer.headers.getall("Warning", [])
            if status is not None:
                assert answer.status == status, content
            return orjson.loads(content) if answer.content_type == "application/json" else content.decode()


@asynccontextmanager
async def serving(operations: Operations, allowed: set[str] | None = None) -> AsyncIterator[Client]:
    """A server on loopback. The header X-User names the caller; `allowed` restricts what anybody may do to verbs."""

    async def authenticate(request: web.Request) -> User:
        name = request.headers.get("X-User", "admin")
        return ANONYMOUS if name == "anonymous" else User(name, ("system:authenticated",))

    def authorize(asked: Attributes) -> bool:
        return allowed is None or asked.verb in allowed or not asked.resource

    server = Server(operations, operations.kinds, authenticate, authorize)
    [port] = await server.start([("127.0.0.1", 0)])
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", read_bufsize=1 << 21) as session:
            yield Client(session, server, port)
    finally:
        await server.stop()


async def soon(awaitable: Any, seconds: float = 20.0) -> Any:
    """A deadline for what a test waits for."""
    return await asyncio.wait_for(awaitable, seconds)
