"""Channels of a migration: connections that a launcher passes to its handler, over a socket of their own.

Each packet (SOCK_SEQPACKET at CHANNELS_SOCKET) is a short JSON object. The handler asks the launcher of the target to
`dial` a channel, and that of the source to `serve` all of them; each `channel` that the launcher then names comes with
the descriptor of a connection, or with an error.

A launcher is not to be trusted: it can send any descriptor, and as many as it likes. Only a connected unix stream
socket is ever taken, one with a packet. All else is closed, by a thread of its own: to close what somebody else has
opened can take for ever.
"""

from __future__ import annotations

import array
import asyncio
import enum
import os
import socket
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from virtfleet.protocol import wire
from virtfleet.work import sockets

LONGEST: Final = 256  # bytes of a packet
LONGEST_ERROR: Final = 150
_MOST_DESCRIPTORS = 253  # that the kernel passes with one packet; what it cannot deliver, it would close in our thread
_PATIENCE = 10.0  # seconds for the other side to take a packet


class Channel(enum.StrEnum):
    """What goes from one launcher to the other."""

    LIBVIRT = "libvirt"
    MEMORY = "memory"
    DISKS = "disks"


class Packet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One packet. A handler sends `dial` or `serve`; a launcher sends `channel`, perhaps with an error."""

    dial: Channel | None = None
    serve: Annotated[list[Channel], Meta(max_length=len(Channel))] = []
    channel: Channel | None = None
    error: Annotated[str, Meta(max_length=LONGEST_ERROR)] = ""


class Line:
    """Either side of the socket. It is closed at the first thing that is not right."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._sending = asyncio.Lock()

    async def send(self, packet: Packet, descriptor: socket.socket | None = None) -> None:
        """Send a packet, with a descriptor, of which a copy goes. Raises OSError, TimeoutError, and WireError."""
        data = _encoded(packet)
        rights = array.array("i", [] if descriptor is None else [descriptor.fileno()])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        async with self._sending, asyncio.timeout(_PATIENCE):
            while True:
                with suppress(BlockingIOError):
                    self._connection.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    return
                await sockets.ready(self._connection, writable=True)

    async def receive(self) -> tuple[Packet, socket.socket | None] | None:
        """The next packet, with the connection that came along; None at the end. Raises WireError and OSError."""
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        while True:
            with suppress(BlockingIOError):
                data, ancillary, flags, _ = self._connection.recvmsg(
                    LONGEST, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
                break
            await sockets.ready(self._connection, writable=False)
        descriptors = [fd for level, kind, content in ancillary for fd in _descriptors(level, kind, content)]
        if not data and not descriptors:
            return None
        try:
            packet = _decoded(data, flags)
            connection = _connection(descriptors)
        except wire.WireError:
            close_aside(descriptors)
            raise
        return packet, connection

    def close(self) -> None:
        """Descriptors that wait unread are closed with it, and that may take its time."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._connection.fileno() >= 0:
            close_aside([self._connection.detach()])


def close_aside(descriptors: Iterable[int]) -> None:
    """Close what somebody else has opened, which may block."""

    def close() -> None:
        for number in numbers:
            with suppress(OSError):
                os.close(number)

    if numbers := list(descriptors):
        threading.Thread(target=close, name="closing descriptors", daemon=True).start()


def _encoded(packet: Packet) -> bytes:
    """An error is cut to what fits, however long JSON makes its characters."""
    packet = msgspec.structs.replace(packet, error=packet.error[:LONGEST_ERROR])
    while len(data := msgspec.json.encode(packet)) > LONGEST:
        if not packet.error:
            raise wire.WireError(f"a packet of {len(data)} bytes is too long for the channels socket")
        packet = msgspec.structs.replace(packet, error=packet.error[:-1])
    return data


def _decoded(data: bytes, flags: int) -> Packet:
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise wire.WireError(f"a packet of more than {LONGEST} bytes, or with more descriptors than can be taken")
    return wire.decode_json(data, Packet)


def _descriptors(level: int, kind: int, content: bytes) -> list[int]:
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    numbers = array.array("i")
    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return numbers.tolist()


def _connection(descriptors: list[int]) -> socket.socket | None:
    """The one connection that may have come along. Where anything is wrong, it stays the caller's to close all."""
    if not descriptors:
        return None
    if len(descriptors) > 1:
        raise wire.WireError(f"{len(descriptors)} descriptors came with one packet")
    (number,) = descriptors
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise wire.WireError("a descriptor is not a socket")
    try:
        connection = socket.socket(fileno=number)
    except OSError as error:
        raise wire.WireError(f"a descriptor is a socket that nothing is known of: {error}") from None
    try:
        if (connection.family, connection.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            raise wire.WireError("it is not a unix stream socket")
        connection.getpeername()
    except (OSError, wire.WireError) as error:
        connection.detach()
        raise wire.WireError(f"a descriptor is not that of a connection: {error}") from None
    return connection
