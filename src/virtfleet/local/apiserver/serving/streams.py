"""Long answers: lists sent in pieces and watches, both at the pace at which the client reads.

aiohttp's writer waits while the client's socket is full, so a slow client holds up only its own stream. A watch whose
client stays behind is ended by its `Watcher`, and its connection cut.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import orjson
from aiohttp import web

from virtfleet.kube.errors import ApiError
from virtfleet.kube.proxy import break_off
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.watching import Watcher, bookmark
from virtfleet.local.apiserver.tables.forms import Form, event_line

log = logging.getLogger(__name__)

HEADERS = {"Cache-Control": "no-cache, private", "Content-Type": "application/json"}
BOOKMARK_SECONDS = 60.0
STALLED_SECONDS = 60.0  # beyond the end of a watch: then its client does not read, and is cut off
_WRITE = 256 * 1024
_DEFAULT_TIMEOUT = 1800.0
_WRITE_COST = 50e-6  # seconds; TLS and the system call
_LONGEST_PAUSE = 0.05
_MARK = "BOOKMARK"


async def send_pieces(request: web.Request, pieces: Iterable[bytes]) -> web.StreamResponse:
    """A body that may be large. Small ones are sent whole."""
    portions = _portions(pieces)
    first, second = next(portions, b""), next(portions, None)
    if second is None:
        return web.Response(body=first, headers=HEADERS)
    stream = web.StreamResponse(headers=HEADERS)
    await stream.prepare(request)
    for portion in chain((first, second), portions):
        await stream.write(portion)
    await stream.write_eof()
    return stream


def _portions(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces put together to what is worth a write."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _WRITE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


async def send_watch(
    request: web.Request, operations: Operations, watcher: Watcher, form: Form, timeout: float | None, bookmarks: bool
) -> web.StreamResponse:
    """Everything that the watcher gives, until its time is over or its client gone."""
    stream = await _open(request)
    watcher.on_overflow = partial(break_off, request)  # ends a write that waits for a client that does not read
    # Clients that came together should not all come back together.
    limit = timeout if timeout is not None else _DEFAULT_TIMEOUT * (1 + random.random())
    deadline = time.monotonic() + limit
    stalled = asyncio.get_running_loop().call_later(limit + STALLED_SECONDS, break_off, request)
    try:
        while (left := deadline - time.monotonic()) > 0:
            events = await watcher.batch(min(left, BOOKMARK_SECONDS))
            if events is None or request.transport is None:
                break
            if events:
                for lines in _portions(e.encoded(kind, form) for kind, e in events if bookmarks or kind != _MARK):
                    await stream.write(lines)
                await asyncio.sleep(_pause(operations))
            elif bookmarks:
                marked = bookmark(watcher.selection.kind, operations.store.revision)
                await stream.write(form.event(_MARK, marked))
        await stream.write_eof()
    except ConnectionError:
        log.debug("the client of a watch of %s is gone", watcher.selection.kind.resource)
    finally:
        stalled.cancel()
        operations.watchers.close(watcher)
    return stream


def _pause(operations: Operations) -> float:
    """Between two writes to one client: twice what writing to every client takes, so that in a storm of events there is
    time for other work and each write carries many events. After a quiet moment an event goes out at once."""
    return min(2 * len(operations.watchers) * _WRITE_COST, _LONGEST_PAUSE)


async def send_watch_error(request: web.Request, error: ApiError) -> web.StreamResponse:
    """A watch that cannot begin, told in its own terms: an ERROR event."""
    stream = await _open(request)
    await stream.write_eof(event_line("ERROR", orjson.dumps(error.status())))
    return stream


async def _open(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers=HEADERS)
    stream.enable_chunked_encoding()
    await stream.prepare(request)
    return stream
