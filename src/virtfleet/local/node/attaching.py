"""What a container says from now on, and what is said to it, over a websocket: kubectl attach.

conmon has a socket for this. It waits for whoever is there to read, and the container waits with it: a client that does
not keep up is let go, not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
from pathlib import Path

import orjson
from aiohttp import web

from virtfleet.local.node.execution import ERROR, STDERR, STDOUT, Size, incoming, opened, outcome, pinging
from virtfleet.work.tasks import first_of

_AHEAD = 128  # packets of at most 8 KiB that a client may be behind
_PACKET, _LARGEST = 1 << 13, 1 << 16  # bytes of one that we send, and of one that we take
_LAST_WORD = 60.0  # seconds in which the client may read why it was let go
_CHANNELS = {2: STDOUT, 3: STDERR}  # by conmon's numbers, of which each packet has one in front


class _Behind(Exception):
    """The client does not read as fast as the container speaks."""


async def attach(request: web.Request, home: Path, *, stdin: bool) -> web.StreamResponse:
    """`home` is where conmon has the container's sockets; `stdin` says whether the container has an input."""
    socket, wanted = await opened(request)
    link, end = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET), outcome(0)
    try:
        await _connect(link, home)
        channels = [channel for channel, name in ((STDOUT, "stdout"), (STDERR, "stderr")) if wanted[name]]
        await first_of(
            _outputs(socket, link, channels),
            _inputs(socket, link, home, stdin=stdin and wanted["stdin"]),
            pinging(socket),
        )
    except _Behind:
        end = {"metadata": {}, "status": "Failure", "message": "the client did not read fast enough"}
    except OSError as error:
        end = {"metadata": {}, "status": "Failure", "message": f"the container cannot be attached to: {error}"}
    finally:
        link.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_LAST_WORD):
            await socket.send_bytes(bytes([ERROR]) + orjson.dumps(end))
    await socket.close()
    return socket


async def _connect(link: sockets.socket, home: Path) -> None:
    link.setblocking(False)
    directory = os.open(home, os.O_PATH)  # its path may be too long for a socket's
    try:
        await asyncio.get_running_loop().sock_connect(link, f"/proc/self/fd/{directory}/attach")
    finally:
        os.close(directory)


async def _outputs(socket: web.WebSocketResponse, link: sockets.socket, channels: list[int]) -> None:
    """Until the container has ended."""
    waiting: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)

    async def read() -> None:
        packet = b"..."
        while packet:
            packet = await asyncio.get_running_loop().sock_recv(link, _LARGEST)
            try:
                waiting.put_nowait(packet)
            except asyncio.QueueFull:
                raise _Behind from None
        await waiting.join()

    async def send() -> None:
        while packet := await waiting.get():
            channel = _CHANNELS.get(packet[0])
            if channel in channels:
                await socket.send_bytes(bytes([channel]) + packet[1:])
            waiting.task_done()
        waiting.task_done()

    await first_of(read(), send())


async def _inputs(socket: web.WebSocketResponse, link: sockets.socket, home: Path, *, stdin: bool) -> None:
    """Until the client is gone."""
    async for what in incoming(socket):
        if isinstance(what, Size):
            _resize(home, what)
        elif stdin and what:
            for start in range(0, len(what), _PACKET):
                await asyncio.get_running_loop().sock_sendall(link, what[start : start + _PACKET])
        elif stdin:
            link.shutdown(sockets.SHUT_WR)


def _resize(home: Path, size: Size) -> None:
    with contextlib.suppress(OSError):  # it has no terminal, or has ended
        control = os.open(home / "ctl", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(control, f"1 {size.height} {size.width}\n".encode())
        finally:
            os.close(control)
