"""Carries bytes between a websocket and a guest's socket, both ways, no faster than the receiving end takes them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, web

from virtfleet.handler.access.seats import End, Seat
from virtfleet.work.tasks import first_of

_CHUNK = 32 << 10
FAREWELL = 3.0  # seconds that a client has to take its last words
_CODES = {
    End.GUEST: WSCloseCode.OK,
    End.TAKEN: WSCloseCode.POLICY_VIOLATION,
    End.STOPPING: WSCloseCode.GOING_AWAY,
    End.UNREACHED: WSCloseCode.INTERNAL_ERROR,
    End.NO_TLS: WSCloseCode.INTERNAL_ERROR,
}


async def relay(
    client: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seat: Seat
) -> End:
    """Carry bytes until one side ends or the seat is lost."""

    async def lost() -> End:
        return await asyncio.shield(seat.lost)

    ends = await first_of(lost(), _to_client(reader, client), _to_guest(client, writer))
    if seat.lost.done():
        return seat.lost.result()
    return next((end for end in ends if end), End.CLIENT)


async def _to_client(reader: asyncio.StreamReader, client: web.WebSocketResponse) -> End:
    while True:
        try:
            data = await reader.read(_CHUNK)
        except OSError:
            data = b""
        if not data:
            return End.GUEST
        try:
            await client.send_bytes(data)
        except ConnectionError:
            return End.CLIENT


async def _to_guest(client: web.WebSocketResponse, writer: asyncio.StreamWriter) -> End:
    async for message in client:
        if message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
            data = message.data
            try:
                writer.write(data.encode() if isinstance(data, str) else data)
                await writer.drain()
            except OSError:
                return End.GUEST
    return End.CLIENT


async def farewell(request: web.Request, client: web.WebSocketResponse, end: End, words: bytes = b"") -> None:
    """Tell a client why its session is over, and be rid of it even if it does not listen. `words` go to its screen."""
    transport = request.transport
    if end is not End.CLIENT:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                if words:
                    await client.send_bytes(words)
                await client.close(code=_CODES[end], message=end.value.encode())
    if transport and client.close_code in (None, WSCloseCode.ABNORMAL_CLOSURE):
        transport.abort()
