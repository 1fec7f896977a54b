"""Long answers: lists sent in pieces and watches, both at the pace at which the client reads.

aiohttp's writer waits while the client's socket is full, so a slow client holds up only its own stream. A watch whose
client stays behind is ended by its `Watcher`; one that is stuck in a write is ended by the time limit here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

import orjson
from aiohttp import web

from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.forms import Form, event_line
from virtfleet.local.apiserver.operations import Operations
from virtfleet.local.apiserver.watching import Watcher, bookmark

JSON = "application/json"
GZIP_FROM = 128 * 1024  # below that, compressing costs more than it saves
BOOKMARK_SECONDS = 60.0
STALLED_SECONDS = 60.0  # a write that a client does not take for so long ends its watch
_WRITE = 256 * 1024
_DEFAULT_TIMEOUT = 1800.0


async def send_pieces(request: web.Request, pieces: Iterable[bytes], headers: dict[str, str]) -> web.StreamResponse:
    """A body that may be large. Small ones are sent whole."""
    waiting: list[bytes] = []
    size = 0
    stream: web.StreamResponse | None = None
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _WRITE:
            if stream is None:
                stream = web.StreamResponse(headers=headers)
                stream.content_type = JSON
                if "gzip" in request.headers.get("Accept-Encoding", ""):
                    stream.enable_compression(web.ContentCoding.gzip)
                await stream.prepare(request)
            await stream.write(b"".join(waiting))
            waiting, size = [], 0
    if stream is None:
        whole = web.Response(body=b"".join(waiting), content_type=JSON, headers=headers)
        if size >= GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
            whole.enable_compression(web.ContentCoding.gzip)
        return whole
    await stream.write_eof(b"".join(waiting))
    return stream


async def send_watch(
    request: web.Request, operations: Operations, watcher: Watcher, form: Form, timeout: float | None, bookmarks: bool
) -> web.StreamResponse:
    """Everything that the watcher gives, until its time is over or its client gone."""
    try:
        stream = await _open(request)
        # Clients that came together should not all come back together.
        limit = timeout if timeout is not None else _DEFAULT_TIMEOUT * (1 + random.random())
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            events = await watcher.batch(min(left, BOOKMARK_SECONDS))
            if events is None:
                break
            if events:
                lines = [
                    event.encoded(event_type, form)
                    for event_type, event in events
                    if bookmarks or event_type != "BOOKMARK"
                ]
                await _write(stream, lines)
            elif bookmarks:
                marked = bookmark(watcher.selection.kind, operations.watchers.revision())
                await _write(stream, [form.event("BOOKMARK", marked)])
        async with asyncio.timeout(STALLED_SECONDS):
            await stream.write_eof()
        return stream
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return stream
    finally:
        operations.watchers.close(watcher)


async def send_watch_error(request: web.Request, error: ApiError) -> web.StreamResponse:
    """A watch that cannot begin, told in its own terms: an ERROR event."""
    stream = await _open(request)
    await stream.write_eof(event_line("ERROR", orjson.dumps(error.status())))
    return stream


async def _open(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Cache-Control": "no-cache, private"})
    stream.content_type = JSON
    stream.enable_chunked_encoding()
    await stream.prepare(request)
    return stream


async def _write(stream: web.StreamResponse, lines: list[bytes]) -> None:
    waiting: list[bytes] = []
    size = 0
    async with asyncio.timeout(STALLED_SECONDS):
        for line in lines:
            waiting.append(line)
            size += len(line)
            if size >= _WRITE:
                await stream.write(b"".join(waiting))
                waiting, size = [], 0
        if waiting:
            await stream.write(b"".join(waiting))
