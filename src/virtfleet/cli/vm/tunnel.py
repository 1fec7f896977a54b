"""Local connections carried through websockets: TCP connections, datagrams, or this process's own standard streams."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import cast

import aiohttp
from aiohttp import WSMsgType

from virtfleet.cli.output import CommandError
from virtfleet.kube.errors import ApiError
from virtfleet.work.tasks import Owned, first_of, start

Websocket = aiohttp.ClientWebSocketResponse
Open = Callable[[], AbstractAsyncContextManager[Websocket]]
_CHUNK = 32 << 10
BROKEN = (OSError, aiohttp.ClientError)


async def carry(websocket: Websocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways, no faster than they are taken, until either side ends."""

    async def outward() -> None:
        while data := await reader.read(_CHUNK):
            await websocket.send_bytes(data)

    async def inward() -> None:
        async for message in websocket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data)
                await writer.drain()

    await first_of(outward(), inward(), forgiven=BROKEN)


@asynccontextmanager
async def listening(address: str, port: int, open_websocket: Open) -> AsyncIterator[int]:
    """Carry every TCP connection to a local port through a websocket of its own, while in here; yields the port."""
    serving = Owned()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            async with open_websocket() as websocket:
                await carry(websocket, reader, writer)
        except ApiError as error:
            print(error.message, file=sys.stderr)
        finally:
            writer.close()

    with _could_listen(address, port):
        server = await asyncio.start_server(serve, address, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await serving.end()


@asynccontextmanager
async def receiving(address: str, port: int, open_websocket: Open) -> AsyncIterator[int]:
    """The same for datagrams: those of one sender go through one websocket, a message each, and answers to it."""
    loop = asyncio.get_running_loop()
    with _could_listen(address, port):
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: _Datagrams(open_websocket), local_addr=(address, port)
        )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
        await protocol.serving.end()


@contextmanager
def _could_listen(address: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts the address before it
        raise CommandError(
            f"port {port} of {address} cannot be used: {why}", "Choose another; 0 is any free one."
        ) from None


class _Datagrams(asyncio.DatagramProtocol):
    """Datagrams that wait for a slow websocket are lost beyond a number, as datagrams are."""

    _WAITING = 64

    def __init__(self, open_websocket: Open) -> None:
        self._open = open_websocket
        self._transport: asyncio.DatagramTransport | None = None
        self._senders: dict[tuple[str, int], asyncio.Queue[bytes]] = {}
        self.serving = Owned()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # which it is by behaviour, not by class

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        if sender not in self._senders:
            self._senders[sender] = asyncio.Queue(self._WAITING)
            self.serving.add(start(self._serve(sender, self._senders[sender]), "datagrams"))
        if not self._senders[sender].full():
            self._senders[sender].put_nowait(data)

    async def _serve(self, sender: tuple[str, int], waiting: asyncio.Queue[bytes]) -> None:
        try:
            async with self._open() as websocket:

                async def outward() -> None:
                    while True:
                        await websocket.send_bytes(await waiting.get())

                async def inward() -> None:
                    async for message in websocket:
                        if message.type is WSMsgType.BINARY and self._transport:
                            self._transport.sendto(message.data, sender)

                await first_of(outward(), inward(), forgiven=BROKEN)
        except ApiError as error:
            print(error.message, file=sys.stderr)
        finally:
            del self._senders[sender]


async def standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output of this process, which must be pipes or sockets."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
