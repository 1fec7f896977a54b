"""The launcher's side of the channels socket: connections of a migration, made here and passed to the handler.

The handler neither listens in a Pod's directories nor opens what lies there. So the source's launcher listens for its
own libvirt and hypervisor, and the target's connects to its own; the handler gets the connections.

That of the source's libvirt goes through here. When it loses the target's answer, libvirt lets the guest run on, though
all of it may be there: so it hears of a loss only when that does no harm, even where the handler has died. And it hears
that the target is ready when the guest is, which may have to stand still first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from virtfleet.domain import paths
from virtfleet.hypervisors.migration import Route
from virtfleet.launcher.failure import Failure
from virtfleet.protocol import wire
from virtfleet.protocol.channels import Channel, Line, Packet
from virtfleet.work import sockets, tasks

logger = logging.getLogger(__name__)

_DIRECTORY: Final = f"{paths.PRIVATE}/migration"
ROUTE: Final = Route(**{channel.value: f"{_DIRECTORY}/{channel}" for channel in Channel})
"""The same in every Pod, because the hypervisor listens on the target where it connects to on the source."""
_PATIENCE = 10.0  # seconds for a daemon to be back; a hypervisor listens before anybody connects, or is dead
_RETRY = 0.02
_BACKLOG = 16
_PIECE = 64 << 10
# libvirt's messages between two daemons, as far as the launcher must know them.
_HEAD = struct.Struct(">7I")  # length with the head, program, version, procedure, kind, serial, status
_DOMAINS = 0x20008086  # the program whose procedures are about domains
_ANSWER = 1
TO_PREPARE = 303
"""The procedure by which a target prepares itself; memory goes next."""


class Channels:
    """The server of the socket. `daemon` is the socket of this Pod's libvirt.

    `prepared` waits, when another has prepared itself for the guest, until this one may go on; `parted`, when its
    connection to that one is lost, until it may know.
    """

    def __init__(
        self, path: Path, daemon: str, prepared: Callable[[], Awaitable[None]], parted: Callable[[], Awaitable[None]]
    ) -> None:
        self._path = path
        self._places = {Channel.LIBVIRT: daemon, Channel.MEMORY: ROUTE.memory, Channel.DISKS: ROUTE.disks}
        self._prepared = prepared
        self._parted = parted
        self._tasks = tasks.Owned()

    def start(self) -> None:
        """Listen. The socket appears under its name only when connections are accepted."""
        os.makedirs(_DIRECTORY, mode=0o700, exist_ok=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        listener = _listen(str(temporary), socket.SOCK_SEQPACKET)
        os.replace(temporary, self._path)
        self._tasks.add(_begin(self._accept(listener), "channels"))

    async def close(self) -> None:
        self._path.unlink(missing_ok=True)
        await self._tasks.end()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                self._tasks.add(_begin(self._talk(Line(connection)), "channels: a handler"))

    async def _talk(self, line: Line) -> None:
        """With one handler, until it closes; then nothing more is passed to it."""
        passing = tasks.Owned()
        try:
            while received := await line.receive():
                packet, _ = received
                if packet.dial:
                    passing.add(_begin(self._dial(packet.dial, line), f"channels: dial {packet.dial}"))
                for channel in packet.serve:
                    listener = _listen(getattr(ROUTE, channel), socket.SOCK_STREAM)
                    passing.add(_begin(self._serve(channel, listener, line), f"channels: serve {channel}"))
        finally:
            await passing.end()
            line.close()

    async def _dial(self, channel: Channel, line: Line) -> None:
        try:
            connection = await _connect(self._places[channel])
        except OSError as error:
            why = str(error) or "nobody listens"
            await line.send(Packet(channel=channel, error=f"{channel} is not reached here: {why}"))
        else:
            with connection:
                await line.send(Packet(channel=channel), connection)

    async def _serve(self, channel: Channel, listener: socket.socket, line: Line) -> None:
        with listener:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                with self._hold(connection) if channel is Channel.LIBVIRT else connection as connection:
                    await line.send(Packet(channel=channel), connection)

    def _hold(self, connection: socket.socket) -> socket.socket:
        """What the handler gets in the place of a connection of libvirt's, which outlives the handler."""
        here, there = socket.socketpair()
        here.setblocking(False)
        self._tasks.add(_begin(self._through(connection, here), "channels: libvirt"))
        return there

    async def _through(self, near: socket.socket, far: socket.socket) -> None:
        """Bytes between libvirt and the other node, until libvirt ends the connection or may know that it is lost."""
        loop = asyncio.get_running_loop()

        async def outward() -> None:
            while data := await loop.sock_recv(near, _PIECE):
                with suppress(OSError):  # nobody hears it; what has become of the way there is seen by `inward`
                    await loop.sock_sendall(far, data)

        async def inward() -> None:
            answers, prepared = Answers(), False
            with suppress(OSError):
                while data := await loop.sock_recv(far, _PIECE):
                    for piece, answered in answers.split(data):
                        if answered == TO_PREPARE:
                            await self._prepared()
                            prepared = True
                        await loop.sock_sendall(near, piece)
            # Before that nothing of the guest has gone, and libvirt may wait for an answer with the domain locked:
            # asked about it, it would not answer either, for ever.
            if prepared:
                await self._parted()

        with near, far:
            await tasks.first_of(outward(), inward())


class Answers:
    """Bytes that come from the other daemon, in any pieces, and what an answer among them answers."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # bytes of the present message

    def split(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """The same bytes, and with each piece the procedure that a message answers which begins there, else 0."""
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                yield piece, 0
                continue
            missing = _HEAD.size - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == _HEAD.size:
                length, program, _, procedure, kind, _, _ = _HEAD.unpack(self._head)
                if length < _HEAD.size:
                    raise wire.WireError(f"a message of libvirt's cannot have {length} bytes")
                self._left = length - _HEAD.size
                yield self._head, procedure if (program, kind) == (_DOMAINS, _ANSWER) else 0
                self._head = b""


def _begin(work: tasks.Work[None], name: str) -> asyncio.Task[None]:
    return tasks.start(work, name, expected=(OSError, wire.WireError, Failure))


async def _connect(path: str) -> socket.socket:
    """A connection as soon as somebody listens: libvirt has its hypervisor do so when it has prepared it."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            with sockets.kept(connection), suppress(FileNotFoundError, ConnectionRefusedError):
                await asyncio.get_running_loop().sock_connect(connection, path)
                return connection
            connection.close()
            await asyncio.sleep(_RETRY)


def _listen(path: str, kind: socket.SocketKind) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.setblocking(False)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(_BACKLOG)
    return listener
