"""Tells guests by which authorities to know callers: KubeVirt's System service, on port 1 of the node's vsock.

A server in a guest that wants TLS asks here whose certificates to take. What it is told is no secret; anybody in any
guest of the node may ask. So they are let in slowly, few at a time, and not for long, and gRPC is never near to a
connection that was not counted: it listens on a socket of the handler's own, and bytes are carried there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any

import grpc
from google.protobuf import empty_pb2, wrappers_pb2

from virtfleet.work import sockets, tasks

logger = logging.getLogger(__name__)

SERVICE, METHOD = "kubevirt.vsock.system.v1.System", "CABundle"
PORT = 1
LOOK = 5.0  # seconds between looks at whether it is wanted
_PAUSE = 0.01  # after each guest that is let in
_AT_ONCE, _OF_ONE = 64, 4
_SECONDS = 30.0
_CHUNK = 1 << 14
_BOUNDS = [
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_receive_message_length", 1024),
    ("grpc.max_metadata_size", 4096),
]


def listen() -> socket.socket:
    """On the node's vsock, which has an address once vhost_vsock is loaded."""
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    with sockets.kept(listener):
        listener.bind((socket.VMADDR_CID_HOST, PORT))
        listener.listen(16)
    return listener


@dataclass
class AuthorityPort:
    """`run()` serves while it is `wanted`; `bundle` is what guests are told, in PEM."""

    _wanted: Callable[[], bool]
    _bundle: Callable[[], bytes]
    _listen: Callable[[], socket.socket] = listen
    _guests: Counter[Any] = field(default_factory=Counter, init=False)

    @property
    def guests(self) -> int:
        """How many are let in."""
        return self._guests.total()

    async def run(self) -> None:
        """Serve until cancelled."""
        said = ""
        while True:
            if self._wanted():
                try:
                    async with self._serving():
                        said = ""
                        while self._wanted():  # noqa: ASYNC110 (no event says so)
                            await asyncio.sleep(LOOK)
                except (OSError, RuntimeError) as error:  # another handler of this machine may have the port
                    if str(error) != said:
                        logger.warning("guests cannot ask for authorities on vsock port %d: %s", PORT, error)
                    said = str(error)
            await asyncio.sleep(LOOK)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        own = f"virtfleet-vsock-{token_hex(8)}"  # in no file system: a handler's image need not have a place for it
        with self._listen() as listener:
            listener.setblocking(False)
            server = grpc.aio.server(options=_BOUNDS, maximum_concurrent_rpcs=_AT_ONCE)
            server.add_generic_rpc_handlers((self._service(),))
            server.add_insecure_port(f"unix-abstract:{own}")
            await server.start()
            letting_in = tasks.keep(partial(self._let_in, listener, f"\0{own}"), "vsock authority port")
            logger.info("guests can ask for authorities on vsock port %d", PORT)
            try:
                yield
            finally:
                letting_in.cancel()
                await asyncio.gather(letting_in, return_exceptions=True)
                await server.stop(None)

    def _service(self) -> grpc.GenericRpcHandler:
        async def tell(_request: Any, _context: Any) -> Any:
            return wrappers_pb2.BytesValue(value=self._bundle())  # as it is written, KubeVirt's Bundle is the same

        method = grpc.unary_unary_rpc_method_handler(
            tell,
            request_deserializer=empty_pb2.Empty.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})

    async def _let_in(self, listener: socket.socket, server: str) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                connection, peer = await loop.sock_accept(listener)
                guest = peer[:1]  # its address; what follows is another port each time
                if self.guests < _AT_ONCE and self._guests[guest] < _OF_ONE:
                    self._guests[guest] += 1
                    group.create_task(self._carry(connection, server)).add_done_callback(partial(self._left, guest))
                else:
                    connection.close()
                await asyncio.sleep(_PAUSE)

    def _left(self, guest: Any, _: object) -> None:
        self._guests -= Counter({guest: 1})  # those at none are forgotten

    async def _carry(self, connection: socket.socket, server: str) -> None:
        with suppress(OSError), ExitStack() as stack:  # TimeoutError among them
            ours, to_guest = await asyncio.open_connection(sock=connection)
            stack.callback(to_guest.transport.abort)
            theirs, to_server = await asyncio.open_unix_connection(server)
            stack.callback(to_server.transport.abort)
            async with asyncio.timeout(_SECONDS):
                await tasks.first_of(_pump(ours, to_server), _pump(theirs, to_guest))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
