"""One websocket through which a page follows any number of lists, each with the visitor's rights.

A browser opens six connections to a server at most, so one for each watch would not do. The page says what it wants
followed, `{"id": 1, "kind": "vms", "namespace": "", "name": ""}`, or dropped, `{"id": 1, "drop": true}`. It hears:
  {"id": 1, "rows": [...]}                  objects of the list, page by page
  {"id": 1, "synced": true}                 all of them were told; who was not among them is gone
  {"id": 1, "rows": [...], "gone": [...]}   what changed since, several changes at once
  {"id": 1, "error": {...}, "final": true}  it may not be followed, or (not final) cannot be just now
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import orjson
from aiohttp import web

from virtfleet.dashboard.passing import is_name
from virtfleet.dashboard.rows import FOLLOWED, WHOLE, Followed, whole
from virtfleet.dashboard.visitors import Visitor
from virtfleet.kube.errors import SILENT, ApiError, is_gone
from virtfleet.work import tasks
from virtfleet.work.pacing import Backoff
from virtfleet.work.tasks import Owned

MOST = 40
"""Lists that one page follows."""
_LONGEST_MESSAGE = 4096
_GATHERING = 0.05  # seconds in which changes are gathered, so that a thousand of them are one message
_FINAL = (400, 401, 403, 404, 405)


class Subscription(msgspec.Struct, forbid_unknown_fields=True):
    """A list that a page wants to follow, or not any more."""

    id: int
    kind: str = ""
    namespace: str = ""
    name: str = ""
    drop: bool = False


async def follow(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    """The websocket, until either side ends it."""
    socket = web.WebSocketResponse(heartbeat=30.0, max_msg_size=_LONGEST_MESSAGE)
    await socket.prepare(request)
    page = _Page(socket, visitor)
    listening = tasks.held(page.listen(), "a page")
    visitor.streams.add(listening)
    try:
        await asyncio.wait([listening])
    finally:
        listening.cancel()
        await page.owned.end()
        await socket.close()
    return socket


class _Page:
    def __init__(self, socket: web.WebSocketResponse, visitor: Visitor) -> None:
        self._socket = socket
        self._visitor = visitor
        self._lists: dict[int, asyncio.Task[None]] = {}
        self.owned = Owned()

    async def listen(self) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            try:
                asked = msgspec.json.decode(message.data, type=Subscription)
            except msgspec.MsgspecError:
                return  # no page of ours
            if old := self._lists.pop(asked.id, None):
                old.cancel()
            if asked.drop:
                continue
            if why := self._refusal(asked):
                await self.say(asked.id, error=ApiError("BadRequest", why).status(), final=True)
                continue
            task = tasks.start(self._follow(asked), f"a page's list: {asked.kind}", expected=(OSError,))
            self._lists[asked.id] = task
            self.owned.add(task)

    def _refusal(self, asked: Subscription) -> str:
        if asked.kind not in FOLLOWED:
            return "there is nothing of that kind to follow"
        if not all(is_name(text) for text in (asked.namespace, asked.name) if text):
            return "that can be no name"
        return "too many lists at once" if len(self._lists) >= MOST else ""

    async def say(self, number: int, **what: Any) -> None:
        await self._socket.send_str(orjson.dumps({"id": number, **what}).decode())

    async def _follow(self, asked: Subscription) -> None:
        backoff = Backoff(0.5, 15.0)
        followed = FOLLOWED[asked.kind]
        while True:
            try:
                version = await self._list(asked, followed)
                backoff.reset()
                while True:
                    version = await self._watch(asked, followed, version)
                    await asyncio.sleep(_GATHERING)  # a server that ends watches at once is not asked without end
            except ApiError as error:
                final = error.code in _FINAL
                if error.reason != SILENT and not is_gone(error):
                    await self.say(asked.id, error=error.status(), final=final)
                if final:
                    return
            await asyncio.sleep(backoff.next())

    async def _list(self, asked: Subscription, followed: Followed) -> str:
        version = ""
        pages = self._visitor.api.pages(
            followed.resource, asked.namespace or None, labels=followed.labels, fields=_fields(asked)
        )
        async for page in pages:
            await self.say(asked.id, rows=[_shown(asked, followed, item) for item in page.items])
            version = page.resource_version
        await self.say(asked.id, synced=True)
        return version

    async def _watch(self, asked: Subscription, followed: Followed, version: str) -> str:
        """Tell changes until the API server ends the watch; the version that was told last."""
        changed: dict[str, dict[str, Any] | None] = {}
        news = asyncio.Event()

        async def tell() -> None:
            rows = [row for row in changed.values() if row is not None]
            gone = [uid for uid, row in changed.items() if row is None]
            changed.clear()
            await self.say(asked.id, rows=rows, gone=gone)

        async def go_on_telling() -> None:
            while True:
                await news.wait()
                await asyncio.sleep(_GATHERING)
                news.clear()
                await tell()

        telling = tasks.held(go_on_telling(), "telling a page")
        try:
            async with self._visitor.api.watch(
                followed.resource,
                asked.namespace or None,
                labels=followed.labels,
                fields=_fields(asked),
                resource_version=version,
            ) as events:
                async for event in events:
                    if telling.done():
                        telling.result()
                    obj = orjson.loads(event.object)
                    version = obj["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        continue
                    row = None if event.type == "DELETED" else _shown(asked, followed, event.object)
                    changed[obj["metadata"]["uid"]] = row
                    news.set()
        finally:
            telling.cancel()
        if changed:
            await tell()
        return version


def _fields(asked: Subscription) -> str:
    if not asked.name:
        return ""
    return f"{'involvedObject' if asked.kind == 'events' else 'metadata'}.name={asked.name}"


def _shown(asked: Subscription, followed: Followed, data: bytes) -> dict[str, Any]:
    obj = orjson.loads(data)
    if asked.name and asked.kind in WHOLE:
        about = {"apiVersion": followed.resource.api_version, "kind": followed.resource.kind}
        return {**followed.row(obj), "object": {**about, **whole(obj)}}
    return followed.row(obj)
