"""A port of the guest through a websocket: bytes of a TCP connection, or UDP datagrams, one to a message.

Whoever reads slowly slows the other end down, and when one end goes, so does the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import WSMsgType, web

from virtfleet.api.subresources import PROTOCOL
from virtfleet.gateway.guestaddress import address_of
from virtfleet.gateway.preconditions import not_paused
from virtfleet.gateway.vms import Vmi, bad_request
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.work.tasks import first_of

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
_DIAL_TIMEOUT = 10.0
_PING_PERIOD = 20.0  # finds clients that went without a word
_DATAGRAMS = 256  # that wait for a slow client; more are lost, as datagrams are


# The end of a connection that is in the guest.
Receive = Callable[[], Awaitable[bytes]]  # nothing at all is the end
Send = Callable[[bytes], Awaitable[None]]  # waits while the guest reads slowly


class _Datagrams(asyncio.DatagramProtocol):
    """Those that came."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue(_DATAGRAMS)

    def datagram_received(self, data: bytes, _: object) -> None:
        if data and not self.received.full():  # an empty message would be the end
            self.received.put_nowait(data)

    def error_received(self, error: Exception) -> None:
        log.debug("a datagram was not delivered: %s", error)


@asynccontextmanager
async def _dial(address: str, port: int, protocol: str) -> AsyncIterator[tuple[Receive, Send]]:
    if protocol == "udp":
        loop = asyncio.get_running_loop()
        transport, datagrams = await loop.create_datagram_endpoint(_Datagrams, remote_addr=(address, port))

        async def throw(data: bytes) -> None:
            transport.sendto(data)

        try:
            yield datagrams.received.get, throw
        finally:
            transport.close()
        return
    async with asyncio.timeout(_DIAL_TIMEOUT):
        reader, writer = await asyncio.open_connection(address, port, limit=_CHUNK)

    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    try:
        yield partial(reader.read, _CHUNK), send
    finally:
        writer.close()


async def forward(request: web.Request, vmi: Vmi, api: KubeApi) -> web.StreamResponse:
    """Connect the caller's websocket with the port in the request's path."""
    not_paused(vmi)
    port, protocol = _asked(request)
    address = await address_of(api, vmi)
    try:
        async with _dial(address, port, protocol) as (receive, send):
            return await _relay(request, receive, send)
    except (OSError, TimeoutError) as error:
        why = os.strerror(error.errno) if error.errno else f"no answer within {_DIAL_TIMEOUT:.0f} s"
        raise ApiError(
            "InternalError", f"dialing VM: {protocol} port {port} of {address}: {why}; is a server running there?"
        ) from error


def _asked(request: web.Request) -> tuple[int, str]:
    text, protocol = request.match_info["port"], request.match_info.get("protocol", "tcp")
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 0 < port < 1 << 16:
        raise bad_request(f"port {text!r} is none; give a number from 1 to 65535")
    if protocol not in ("tcp", "udp"):
        raise bad_request(f"protocol {protocol!r} cannot be forwarded; use tcp or udp")
    return port, protocol


async def _relay(request: web.Request, receive: Receive, send: Send) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=(PROTOCOL,), heartbeat=_PING_PERIOD, compress=False)
    await socket.prepare(request)
    try:
        await first_of(_to_guest(socket, send), _to_client(receive, socket))
    finally:
        await socket.close()
    return socket


async def _to_guest(socket: web.WebSocketResponse, send: Send) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await send(message.data)


async def _to_client(receive: Receive, socket: web.WebSocketResponse) -> None:
    while data := await receive():
        await socket.send_bytes(data)
