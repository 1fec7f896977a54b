"""Ports of a pod over a websocket, as kubectl asks for them: SPDY inside of it.

Each connection goes to 127.0.0.1 as the pod has it. Who sends faster than a pod reads is stopped, as in Kubernetes for
all connections of one client at once: nothing lets one of them wait alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket as sockets
import struct
from concurrent.futures import ThreadPoolExecutor

from aiohttp import WSMsgType, web

from virtfleet.kube.errors import ApiError
from virtfleet.local.node import spdy
from virtfleet.local.node.execution import pinging
from virtfleet.work.tasks import Owned, first_of, start

TUNNEL = "SPDY/3.1+portforward.k8s.io"
MOST_CONNECTIONS = 256  # of one client
_CHUNK = 1 << 15
_AHEAD = 1 << 20  # bytes that wait for a pod that does not read yet
_DIAL_TIMEOUT = 10.0
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


async def forward(request: web.Request, namespace: str, pod: str) -> web.StreamResponse:
    """`namespace` is the file that holds the pod's network; `pod` is said in errors."""
    socket = web.WebSocketResponse(protocols=(TUNNEL,), compress=False, max_msg_size=2 * spdy.LARGEST_DATA)
    if not socket.can_prepare(request).protocol:
        raise ApiError("BadRequest", f"port-forward needs a websocket with {TUNNEL}, as kubectl asks for it")
    await socket.prepare(request)
    try:
        await first_of(_Tunnel(socket, namespace, pod).run(), pinging(socket))
    finally:
        await socket.close()
    return socket


def _port(text: str) -> int:
    """0 for what is none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    return number if number < 1 << 16 else 0


def _cut(writer: asyncio.StreamWriter) -> None:
    """At once, whether the pod reads what is under way or not."""
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


class _Tunnel:
    """SPDY whose bytes are those of a websocket's messages. A connection is two streams of one request: error, data."""

    def __init__(self, socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        self._socket, self._namespace, self._pod = socket, namespace, pod
        self._encoder, self._last = spdy.Encoder(), 0
        self._requests: dict[str, dict[str, int]] = {}  # request -> kind -> number
        self._links: dict[int, asyncio.Future[asyncio.StreamWriter | None]] = {}  # by the number of the data stream
        self._owned = Owned()

    async def run(self) -> None:
        decoder = spdy.Decoder()
        try:
            async for message in self._socket:
                for frame in decoder.feed(message.data) if message.type is WSMsgType.BINARY else ():
                    if frame.kind == spdy.GOAWAY:
                        return
                    await self._take(frame)
        except spdy.SpdyError:
            await self._socket.send_bytes(spdy.go_away(self._last, spdy.PROTOCOL_ERROR))
        finally:
            await self._owned.end()

    async def _take(self, frame: spdy.Frame) -> None:
        match frame.kind:
            case spdy.SYN_STREAM:
                await self._open(frame)
            case spdy.DATA if frame.number in self._links:
                writer = await self._links[frame.number]
                if writer is not None and not writer.is_closing():
                    with contextlib.suppress(OSError):
                        if frame.data:
                            writer.write(frame.data)
                            await writer.drain()
                        if frame.fin:
                            writer.write_eof()
            case spdy.RST_STREAM if frame.number in self._links:
                if writer := await self._links[frame.number]:
                    _cut(writer)
            case spdy.PING if frame.number % 2:  # even ones would be answers to ours
                await self._socket.send_bytes(spdy.ping(frame.number))

    async def _open(self, frame: spdy.Frame) -> None:
        number, headers = frame.number, frame.headers
        if number % 2 == 0 or number <= self._last:
            raise spdy.SpdyError(f"stream {number} after {self._last}")
        self._last = number
        kind, request, port = headers.get("streamtype"), headers.get("requestid"), _port(headers.get("port", ""))
        if kind not in ("error", "data") or not request or not port or kind in self._requests.get(request, ()):
            return await self._socket.send_bytes(spdy.reset(number, spdy.PROTOCOL_ERROR))
        if request not in self._requests and len(self._requests) >= MOST_CONNECTIONS:
            return await self._socket.send_bytes(spdy.reset(number, spdy.REFUSED_STREAM))
        both = self._requests.setdefault(request, {})
        both[kind] = number
        await self._socket.send_bytes(self._encoder.opening(spdy.SYN_REPLY, number, {}))
        if len(both) == 2:
            self._links[both["data"]] = asyncio.get_running_loop().create_future()
            self._owned.add(start(self._serve(both, port, request), "forwarded connection", expected=(OSError,)))
        return None

    async def _serve(self, both: dict[str, int], port: int, request: str) -> None:
        why = await self._connected(both["data"], port)
        del self._requests[request], self._links[both["data"]]
        said = f"error forwarding port {port} to pod {self._pod}: {why}" if why else ""
        await self._socket.send_bytes(spdy.data(both["error"], said.encode(), fin=True))  # read when the data has ended
        await self._socket.send_bytes(spdy.data(both["data"], b"", fin=True))

    async def _connected(self, stream: int, port: int) -> str:
        """Pass on what the pod says, until it says no more. The answer is what went wrong, if anything."""
        link = self._links[stream]
        try:
            reader, writer = await _dial(self._namespace, port)
        except (OSError, TimeoutError) as error:
            link.set_result(None)
            why = os.strerror(error.errno).lower() if error.errno else f"no answer within {_DIAL_TIMEOUT:.0f} s"
            return f"dial tcp 127.0.0.1:{port}: connect: {why}"
        link.set_result(writer)
        try:
            while said := await reader.read(_CHUNK):
                await self._socket.send_bytes(spdy.data(stream, said))
        except OSError as error:
            return str(error)
        except asyncio.CancelledError:
            _cut(writer)
            raise
        finally:
            writer.transport.abort()
        return ""


async def _dial(namespace: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:  # it ends in the namespace that it went to
        socket = await loop.run_in_executor(thread, _socket_in, namespace)
    try:
        socket.setblocking(False)
        async with asyncio.timeout(_DIAL_TIMEOUT):
            await loop.sock_connect(socket, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=socket, limit=_CHUNK)
    except BaseException:
        socket.close()
        raise
    writer.transport.set_write_buffer_limits(_AHEAD)
    return reader, writer


def _socket_in(namespace: str) -> sockets.socket:
    """A socket stays in the namespace that it was made in."""
    with open(namespace, "rb") as file:
        if _libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    return sockets.socket()
