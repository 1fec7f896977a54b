"""The API over HTTPS: `KubeApi` for any Kubernetes. What is repeated and what is not: see `transport`.

Lists and watches are split without decoding the objects in them. msgspec.Raw finds where each begins and ends and
leaves it as bytes; whoever wants an object decodes what it needs of it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson

from virtfleet.kube.api import KubeApi, Page, Patch, WatchEvent
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, Obj, Resource
from virtfleet.kube.transport import Transport

_METHODS = {"get": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
# No object is as large as this; a stream without line ends must not eat the memory.
LONGEST_EVENT = 32 * 2**20


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_list = msgspec.json.Decoder(_List)
_event = msgspec.json.Decoder(_Event)


class Client(Transport, KubeApi):
    """Objects, on top of requests. Use it as `async with Client(config) as api:`."""

    async def pages(
        self, res: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[Page]:
        params = _selection(labels, fields)
        if limit:
            params["limit"] = str(limit)
        while True:
            page = split_list(
                await self.request("GET", res.path(namespace), params=params, verb="list", resource=str(res))
            )
            yield page
            if not page.more:
                return
            params["continue"] = page.more

    @asynccontextmanager
    async def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        params = _selection(labels, fields) | {"watch": "true", "allowWatchBookmarks": "true"}
        if resource_version:
            params["resourceVersion"] = resource_version
        if timeout is not None:
            params["timeoutSeconds"] = str(math.ceil(timeout))
        async with self._stream("watch", str(res), res.path(namespace), params) as chunks:
            yield split_events(chunks)

    @asynccontextmanager
    async def log(self, pod: str, namespace: str, params: dict[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The log of a Pod's container, as it comes."""
        async with self._stream("get", f"{PODS}/log", _path(PODS, namespace, pod, "log"), params) as chunks:
            yield chunks

    async def delete_collection(self, res: Resource, namespace: str | None = None) -> None:
        await self.request("DELETE", res.path(namespace), verb="deletecollection", resource=str(res))

    async def _ask(
        self,
        verb: str,
        res: Resource,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
        body: Any = None,
        *,
        how: Patch | None = None,
        dry_run: bool = False,
    ) -> Obj:
        method = _METHODS[verb]
        path = res.path(namespace) if name is None else _path(res, namespace, name, subresource)
        answer = await self.request(
            method,
            path,
            params={"dryRun": "All"} if dry_run else {},
            body=None if body is None else orjson.dumps(body),
            content_type=how or "application/json",
            verb=verb,
            resource=f"{res}/{subresource}" if subresource else str(res),
        )
        try:
            obj: Obj = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise ApiError("InternalError", f"{method} {path}: the answer is not JSON: {error}") from error
        return obj


def _path(res: Resource, namespace: str | None, name: str, subresource: str | None = None) -> str:
    """The path of one object. A name out of somebody's data must not lead anywhere else."""
    for segment in (name,) if namespace is None else (namespace, name):
        if segment in ("", ".", "..") or set(segment) & set("/%?#"):
            raise ApiError("BadRequest", f"{segment!r} cannot be the name of one of {res} or of its namespace")
    return res.path(namespace, name, subresource)


def _selection(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def split_list(body: bytes) -> Page:
    try:
        decoded = _list.decode(body)
    except msgspec.MsgspecError as error:
        raise ApiError("InternalError", f"the server's answer is not a list: {error}") from error
    return Page([bytes(item) for item in decoded.items or ()], decoded.metadata.version, decoded.metadata.more)


async def split_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent]:
    """The events of a watch, one per line. A line cut short by the end of the stream never happened."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_EVENT:
            raise ApiError("InternalError", f"watch: an event of more than {LONGEST_EVENT} bytes")
        for line in lines:
            if not line.strip():
                continue
            try:
                event = _event.decode(line)
                if event.type == "ERROR":
                    raise ApiError.from_status(orjson.loads(bytes(event.object)), 500)
            except (msgspec.MsgspecError, orjson.JSONDecodeError) as error:
                raise ApiError("InternalError", f"watch: not an event: {line[:80]!r}: {error}") from error
            yield WatchEvent(event.type, bytes(event.object))
