"""A small API server whose faults are scripted, for tests of what the kube runtime does when things go wrong.

It keeps objects of any kind with revisions and a history to watch, over real sockets. What goes wrong is said by the
test: the next request that matches gets another answer, watches are dropped, fall silent or speak nonsense, the history
is compacted, the server goes away and comes back on the same port.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from aiohttp import web

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource

T = TypeVar("T")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def eventually(condition: Callable[[], T | None], deadline: float = 20.0) -> T:
    """The first truthy value of `condition`, which is asked again and again until the deadline."""
    last: object = None
    try:
        async with asyncio.timeout(deadline):
            while True:
                last = value = condition()
                if value:
                    return value
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not come true within {deadline} s; last: {last!r}") from None


def pod(name: str, namespace: str = "default", **metadata: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"nodeName": "node01"},
    }


def status_answer(error: ApiError, headers: dict[str, str] | None = None) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(
            status=error.code, body=orjson.dumps(error.status()), content_type="application/json", headers=headers
        )

    return answer


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Break the connection without having acted on the request."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclass
class _Watcher:
    collection: str
    namespace: str | None
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None: the server ends the watch
    request: web.Request | None = None


class ScriptedServer:
    """`async with ScriptedServer() as server:`, then `server.url`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.revision = 100
        self.compacted = 0  # watches from before this revision get 410
        self.requests: list[tuple[str, str]] = []  # method and path with query, as they came
        self.headers: list[dict[str, str]] = []
        self.watchers: list[_Watcher] = []
        self.port = 0
        self._tls = tls
        self._objects: dict[str, dict[tuple[str, str], Obj]] = {}  # collection -> (namespace, name) -> object
        self._history: list[tuple[int, str, str, Obj]] = []  # revision, type, collection, object
        self._script: list[tuple[str, str, Answer]] = []
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to listen, on the port of before if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """From the next start on."""
        self._tls = tls

    async def stop(self) -> None:
        self.drop_watches()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    # -- what the test does

    def next(self, method: str, part: str, answer: Answer, times: int = 1) -> None:
        """The next requests of this method whose path and query contain `part` get this answer."""
        self._script += [(method, part, answer)] * times

    def count(self, method: str, part: str) -> int:
        return sum(1 for m, path in self.requests if m == method and part in path)

    def put(self, res: Resource, obj: Obj, *, silently: bool = False) -> Obj:
        """Create or change an object; silently if no watch, present or future, is to learn of it."""
        return self._put(_collection(res), obj, silently)

    def remove(self, res: Resource, name: str, namespace: str = "", *, silently: bool = False) -> None:
        self._remove(_collection(res), (namespace, name), silently)

    def go_back(self, revision: int) -> None:
        """Count on from an earlier revision, as a server does that was restored from a backup."""
        self.revision = revision
        self._history = [entry for entry in self._history if entry[0] <= revision]

    def stored(self, res: Resource) -> list[Obj]:
        return [*self._objects.get(_collection(res), {}).values()]

    def say(self, line: bytes) -> None:
        """Send these bytes to every watcher, as they are."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(line)

    def bookmark(self) -> None:
        self.say(_event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.revision)}}))

    def end_watches(self) -> None:
        """End every watch politely, as at its timeout."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)

    def drop_watches(self) -> None:
        """Cut the connection of every watch."""
        for watcher in self.watchers:
            if watcher.request and watcher.request.transport:
                watcher.request.transport.abort()
            watcher.lines.put_nowait(None)
        self.watchers.clear()

    async def lose_answer(self, request: web.Request) -> web.StreamResponse:
        """Act on the request, and let the connection break before the answer is out."""
        await self._serve(request)
        return await hang_up(request)

    # -- what the server does

    def _put(self, collection: str, obj: Obj, silently: bool = False) -> Obj:
        known = self._objects.setdefault(collection, {}).get(_key(obj))
        self.revision += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.revision}"
        stored = {**obj, "metadata": {"uid": uid, **obj["metadata"], "resourceVersion": str(self.revision)}}
        self._objects[collection][_key(obj)] = stored
        if not silently:
            self._publish("MODIFIED" if known else "ADDED", collection, stored)
        return stored

    def _remove(self, collection: str, key: tuple[str, str], silently: bool = False) -> None:
        gone = self._objects[collection].pop(key)
        self.revision += 1
        if not silently:
            last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.revision)}}
            self._publish("DELETED", collection, last)

    def _publish(self, kind: str, collection: str, obj: Obj) -> None:
        self._history.append((self.revision, kind, collection, obj))
        for watcher in self.watchers:
            if watcher.collection == collection and watcher.namespace in (None, obj["metadata"].get("namespace")):
                watcher.lines.put_nowait(_event(kind, obj))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        self.headers.append(dict(request.headers))
        for entry in self._script:
            method, part, answer = entry
            if method == request.method and part in request.path_qs:
                self._script.remove(entry)
                return await answer(request)
        try:
            return await self._serve(request)
        except ApiError as error:
            return await status_answer(error)(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        collection, namespace, name = _parse(request.path)
        if request.method == "GET" and "watch" in request.query:
            return await self._watch(request, collection, namespace)
        objects = self._objects.setdefault(collection, {})
        if request.method == "GET" and not name:
            return self._list(request, [o for key, o in objects.items() if namespace in (None, key[0])])
        if request.method == "POST":
            obj = await request.json()
            if _key(obj) in objects:
                raise ApiError("AlreadyExists", f'"{obj["metadata"]["name"]}" already exists')
            return _json(self._put(collection, obj), 201)
        key = (namespace or "", name)
        known = objects.get(key)
        if known is None:
            raise ApiError("NotFound", f'"{name}" not found')
        if request.method == "PUT":
            obj = await request.json()
            version = obj["metadata"].get("resourceVersion")
            if version and version != known["metadata"]["resourceVersion"]:
                raise ApiError("Conflict", f'Operation cannot be fulfilled on "{name}"')
            return _json(self._put(collection, obj))
        if request.method == "PATCH":
            return _json(self._put(collection, _merged(known, await request.json())))
        if request.method == "DELETE":
            self._remove(collection, key)
        return _json(known)

    def _list(self, request: web.Request, objects: list[Obj]) -> web.Response:
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0))
        end = start + limit if limit else len(objects)
        meta = {"resourceVersion": str(self.revision)}
        if end < len(objects):
            meta["continue"] = str(end)
        items = [{k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} for obj in objects[start:end]]
        return _json({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items or None})

    async def _watch(self, request: web.Request, collection: str, namespace: str | None) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", "0"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self.compacted:
            error = ApiError("Expired", f"too old resource version: {since} ({self.compacted})")
            await response.write(_event("ERROR", error.status()))
            return response
        watcher = _Watcher(collection, namespace, request=request)
        for revision, kind, where, obj in self._history:
            if revision > since and where == collection and namespace in (None, obj["metadata"].get("namespace")):
                watcher.lines.put_nowait(_event(kind, obj))
        self.watchers.append(watcher)
        try:
            while (line := await watcher.lines.get()) is not None:
                await response.write(line)
        finally:
            if watcher in self.watchers:
                self.watchers.remove(watcher)
        return response


def _collection(res: Resource) -> str:
    return f"{res.root}/{res.plural}"


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _event(kind: str, obj: Obj) -> bytes:
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def _json(obj: Obj, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(obj), status=status, content_type="application/json")


def _parse(path: str) -> tuple[str, str | None, str]:
    """The collection, namespace and name that a path means."""
    parts = path.strip("/").split("/")
    depth = 2 if parts[0] == "api" else 3
    root, rest = parts[:depth], parts[depth:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return "/" + "/".join([*root, rest[0]]), namespace, rest[1] if len(rest) > 1 else ""


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    base = target if isinstance(target, dict) else {}
    kept = {key: value for key, value in base.items() if key not in patch}
    return kept | {key: _merged(base.get(key), value) for key, value in patch.items() if value is not None}
