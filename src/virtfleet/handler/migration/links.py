"""Connections between handlers: who they are from, what they are for, and words on them. Nothing here ever blocks.

Both sides show a certificate of the installation's authority for virt-handler, and nobody else is listened to. The
first frame says which migration a connection belongs to and what goes over it. A frame is a length of four bytes, then
JSON. Where a migration's settings switch encryption off, its connections are plain: their first byte tells them apart.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from virtfleet.kube import certificates, peers
from virtfleet.kube.certificates import Credential
from virtfleet.work import sockets

SERVER_NAME: Final = "virt-handler"
GREETING: Final = 10.0  # seconds for a handshake and the first frame
_LENGTH = struct.Struct(">I")
_LONGEST_HELLO = 512
_LONGEST_WORD = 2 << 20  # a document of 256 Ki characters, however JSON writes them
_HANDSHAKE = b"\x16"  # the first byte of TLS; that of a frame is 0
# A peer whose node has gone is noticed within half a minute, whether or not something is on its way to it.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}

T = TypeVar("T")


class LinkError(Exception):
    """The other side is not who it should be, does not speak this protocol, or broke off."""


class Purpose(enum.StrEnum):
    """What goes over a connection; all but `control` are channels of the launchers'."""

    CONTROL = "control"
    LIBVIRT = "libvirt"
    MEMORY = "memory"
    DISKS = "disks"


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame."""

    migration: Annotated[str, Meta(max_length=64)]
    purpose: Purpose


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What handlers say to each other about a migration. Facts may come again; what is not said has not changed."""

    document: Annotated[str, Meta(max_length=256 << 10)] = ""
    """Target: what its launcher has prepared."""
    complete: bool = False
    """Target: all of the guest is here."""
    running: bool = False
    """Target: the guest has been let run here."""
    source_ended: bool = False
    """Source: nothing of the guest is alive here any more, so it may run there."""
    source_keeps: Annotated[str, Meta(max_length=1024)] = ""
    """Source: why the guest stays; what is of it there is to go."""


class Link:
    """One connection to another handler. One side of it may be read and one written at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @property
    def plain(self) -> bool:
        return not isinstance(self.connection, ssl.SSLSocket)

    async def send(self, word: Hello | Word) -> None:
        data = msgspec.json.encode(word)
        left = memoryview(_LENGTH.pack(len(data)) + data)
        while left:
            left = left[await _done(self.connection, partial(self.connection.send, left), writes=True) :]

    async def hello(self) -> Hello:
        return await self._receive(Hello, _LONGEST_HELLO)

    async def word(self) -> Word:
        return await self._receive(Word, _LONGEST_WORD)

    async def _receive(self, kind: type[T], longest: int) -> T:
        (length,) = _LENGTH.unpack(await self._exactly(_LENGTH.size))
        if length > longest:
            raise LinkError(f"a frame of {length} bytes, where {longest} are the most that is taken")
        try:
            return msgspec.json.decode(await self._exactly(length), type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise LinkError(f"not a {kind.__name__}: {error}") from None

    async def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            missing = min(length - len(data), 1 << 16)
            piece = await _done(self.connection, partial(self.connection.recv, missing))
            if not piece:
                raise LinkError("the other side has closed the connection")
            data += piece
        return bytes(data)

    def stop(self) -> None:
        """End it for whoever waits for something on it, and closes it then."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()


@dataclass
class Identity:
    """This handler to others: `credential` is its present certificate, `name` the one that all handlers have."""

    _credential: Callable[[], Credential]
    _name: str

    async def accept(self, connection: socket.socket) -> Link:
        """The link of a connection that somebody made to us, as soon as it is known who. Closed where that fails."""
        _keep_alive(connection)
        with sockets.kept(connection):
            first = await _done(connection, lambda: connection.recv(1, socket.MSG_PEEK))
            return await self._secured(connection, listening=True) if first == _HANDSHAKE else Link(connection)

    async def dial(self, address: str, port: int, hello: Hello, *, plain: bool) -> Link:
        """A link to another handler, which has been told what it is for. Raises LinkError and OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(GREETING):
                with sockets.kept(connection):
                    await asyncio.get_running_loop().sock_connect(connection, (address, port))
                    _keep_alive(connection)
                    link = Link(connection) if plain else await self._secured(connection, listening=False)
                with sockets.kept(link.connection):
                    await link.send(hello)
                return link
        except TimeoutError:
            raise LinkError(f"{address} port {port} does not answer within {GREETING:.0f} s") from None

    async def _secured(self, connection: socket.socket, *, listening: bool) -> Link:
        server, client = _tls(self._credential())
        secured = (server if listening else client).wrap_socket(
            connection,
            server_side=listening,
            do_handshake_on_connect=False,
            server_hostname=None if listening else SERVER_NAME,
        )
        with sockets.kept(secured):
            try:
                await _done(secured, secured.do_handshake)
            except ssl.SSLError as error:
                raise LinkError(f"no TLS with the other side: {error}") from None
            peer = peers.of(secured.getpeercert() or {})
            if peer.name != self._name:
                raise LinkError(f"the certificate is that of {peer.name}; handlers speak to {self._name} only")
        return Link(secured)


@lru_cache(1)
def _tls(credential: Credential) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What is spoken with who calls, and with who is called."""
    server = certificates.server_context(credential, clients=credential.bundle, required=True)
    client = certificates.client_context(credential.bundle, credential)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # One direction may end before the other: its TCP stream does, and that ends no session.
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    return server, client


def _keep_alive(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _done(connection: socket.socket, action: Callable[[], T], *, writes: bool = False) -> T:
    """Do what may have to wait for the connection."""
    while True:
        try:
            return action()
        except ssl.SSLWantReadError:
            wait = False
        except ssl.SSLWantWriteError:
            wait = True
        except BlockingIOError:
            wait = writes
        await sockets.ready(connection, writable=wait)
