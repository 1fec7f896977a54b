"""The node's one listener for migrations, and both ends of those that go through it.

Connections come in for guests on their way here (`Incoming`): each is for one channel, which the guest's launcher is
asked to open. For guests that leave (`ChannelsOut`) the launcher passes each connection that its libvirt or its
hypervisor makes, and the same is made to the other node. Neither side looks at the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from virtfleet.api.names import MIGRATION_INTERFACE
from virtfleet.handler.migration.links import GREETING, Identity, Link, LinkError, Purpose, Word
from virtfleet.handler.migration.relay import Relay
from virtfleet.handler.pods import files as podfiles
from virtfleet.protocol.channels import Channel, Line, Packet, close_aside
from virtfleet.protocol.messages import CHANNELS_SOCKET
from virtfleet.protocol.wire import WireError
from virtfleet.work import tasks
from virtfleet.work.commands import CommandError, run

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 64  # of one migration: one for each disk that is copied, and a few
_MOST_STRANGERS = 128  # connections that have not yet said what they are for
_DIAL = 40.0  # seconds for a launcher to open a channel; it waits for its hypervisor to listen
_BROKEN = (LinkError, WireError, OSError, TimeoutError)
_VOLUME, _SOCKET = "sockets", posixpath.basename(CHANNELS_SOCKET)


class Relays:
    """The connections of one migration."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._running: set[Relay] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._running)

    def full(self) -> bool:
        return len(self._running) >= MOST_CONNECTIONS

    def begin(self, link: Link, near: socket.socket, channel: str) -> None:
        """Relay between a link and a launcher's connection, which are the relay's from now on."""
        if self._stopped or self.full():
            logger.warning("%s: no further connection for %s: %s", self._name, channel, "it has ended or has too many")
            link.close()
            close_aside([near.detach()])
            return
        self._running.add(Relay(link.connection, near, f"{self._name} {channel}", self._ended))

    def stop(self) -> None:
        self._stopped = True
        for relay in self._running:
            relay.stop()

    def _ended(self, relay: Relay) -> None:
        """In the relay's thread."""
        with suppress(RuntimeError):  # the loop has ended before it
            self._loop.call_soon_threadsafe(self._running.discard, relay)


@dataclass(eq=False)
class Incoming:
    """A guest on its way here. `changed` is called when the source says something new."""

    uid: str
    pod: Path
    document: str
    changed: Callable[[], None]
    plain: bool
    """Whether the migration's settings switch encryption off."""
    by_itself: bool = False
    """Whether libvirt lets the guest run as soon as all of it is here, because post-copy is allowed."""
    source_ended: bool = False
    source_keeps: str = ""
    arriving: asyncio.Lock = field(default_factory=asyncio.Lock)
    arrived: bool = False
    """Whether the guest has been let run here."""
    _control: Link | None = None

    def __post_init__(self) -> None:
        self._said = Word(document=self.document)
        self._relays = Relays(f"migration {self.uid}")

    async def say(self, *, complete: bool = False, running: bool = False) -> None:
        """Tell the source, now and whenever it calls again."""
        word = Word(document=self.document, complete=complete, running=running)
        if word == self._said:
            return
        self._said = word
        if self._control:
            with suppress(*_BROKEN):
                async with asyncio.timeout(GREETING):
                    await self._control.send(Word(complete=complete, running=running))

    async def take(self, link: Link, purpose: Purpose) -> None:
        """Serve a connection of the source's for as long as it lasts, or hand it to a relay."""
        if purpose is Purpose.CONTROL:
            await self._listen(link)
        elif self._relays.full():
            raise LinkError(f"it has {MOST_CONNECTIONS} connections")
        else:
            channel = Channel(purpose.value)
            self._relays.begin(link, await dial(self.pod, channel), channel)

    def close(self) -> None:
        self._relays.stop()
        if self._control:
            self._control.stop()

    async def _listen(self, link: Link) -> None:
        if self._control:
            raise LinkError("the source has called already")
        self._control = link
        try:
            await link.send(self._said)
            while True:
                word = await link.word()
                self.source_ended = self.source_ended or word.source_ended
                self.source_keeps = self.source_keeps or word.source_keeps
                self.changed()
        finally:
            self._control = None


async def dedicated_address(interface: str = MIGRATION_INTERFACE) -> str:
    """This handler's address on the network that migrations have for themselves, where Multus put it on one."""
    try:
        links = msgspec.json.decode(await run("ip", "-json", "addr", "show", "dev", interface))
    except CommandError:
        return ""  # there is no such interface
    addresses = (each for link in links for each in link.get("addr_info", ()))
    return next((each["local"] for each in addresses if each.get("scope") == "global"), "")


async def dial(pod: Path, channel: Channel) -> socket.socket:
    """A connection of the launcher's to its own libvirt or hypervisor."""
    line = Line(podfiles.connect(pod, _VOLUME, _SOCKET, kind=socket.SOCK_SEQPACKET))
    try:
        async with asyncio.timeout(_DIAL):
            await line.send(Packet(dial=channel))
            answer = await line.receive()
    finally:
        line.close()
    packet, connection = answer or (Packet(), None)
    if connection is None:
        raise WireError(f"the launcher opens no {channel}: {packet.error or 'it closed the connection'}")
    if packet.channel is not channel:
        close_aside([connection.detach()])
        raise WireError(f"the launcher was asked for {channel}, and opened {packet.channel}")
    return connection


class ChannelsOut:
    """What a launcher's libvirt and hypervisor send to another node. `call` makes a connection there."""

    def __init__(self, name: str, pod: Path, call: Callable[[Purpose], Awaitable[Link]]) -> None:
        self._name = name
        self._call = call
        self._relays = Relays(name)
        self._line = Line(podfiles.connect(pod, _VOLUME, _SOCKET, kind=socket.SOCK_SEQPACKET))
        self._calling = tasks.Owned()

    async def open(self) -> None:
        """The launcher listens from now on."""
        await self._line.send(Packet(serve=list(Channel)))

    async def run(self) -> None:
        """Relay what the launcher passes, until it ends."""
        while (passed := await self._line.receive()) is not None:
            packet, near = passed
            if near is None:
                logger.warning("%s: the launcher says %r", self._name, packet.error or packet)
                if packet.error:
                    raise WireError(packet.error)
            elif packet.channel is None or len(self._relays) + len(self._calling) >= MOST_CONNECTIONS:
                close_aside([near.detach()])
                raise WireError("the launcher passes more connections than a migration needs, or does not say of what")
            else:
                self._calling.add(tasks.start(self._connect(packet.channel, near), f"migration: {self._name}"))

    def close(self) -> None:
        self._line.close()
        self._relays.stop()
        self._calling.cancel()

    async def _connect(self, channel: Channel, near: socket.socket) -> None:
        try:
            link = await self._call(Purpose(channel.value))
        except BaseException as error:
            close_aside([near.detach()])
            if not isinstance(error, _BROKEN):
                raise
            logger.warning("%s: no connection for %s to the other node: %s", self._name, channel, error)
            return
        self._relays.begin(link, near, channel)


@dataclass
class Proxy:
    """Listens on `address` for all migrations to this node, and connects for those that leave it."""

    identity: Identity
    address: str
    """Where other nodes reach it."""
    host: str = ""
    port: int = 0
    """The one to listen on, 0 for any that is free; then the one that it listens on."""
    dedicated: bool = False
    """Whether the address is on the network that migrations have for themselves."""
    refuses: bool = field(default=False, init=False)
    """Whether this handler ends, and takes no new migration."""
    _incoming: dict[str, Incoming] = field(default_factory=dict, init=False)
    _greeting: tasks.Owned = field(default_factory=tasks.Owned, init=False)
    _accepting: asyncio.Task[None] | None = field(default=None, init=False)

    def listen(self) -> None:
        if self._accepting is None:
            host = self.host or ("::" if ":" in self.address else "0.0.0.0")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, self.port), family=family, backlog=_MOST_STRANGERS)
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            self._accepting = tasks.start(self._accept(listener), "migrations: listener")

    def close(self) -> None:
        if self._accepting:
            self._accepting.cancel()
        for uid in [*self._incoming]:
            self.forget(uid)

    def expect(self, incoming: Incoming) -> None:
        self.listen()
        self._incoming[incoming.uid] = incoming

    def forget(self, uid: str) -> None:
        if incoming := self._incoming.pop(uid, None):
            incoming.close()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                except OSError as error:
                    logger.error("migrations: no connection can be taken: %s", error)
                    await asyncio.sleep(1)  # there are no descriptors left, and nothing tells when there are
                    continue
                if len(self._greeting) >= _MOST_STRANGERS:
                    connection.close()
                    continue
                self._greeting.add(tasks.start(self._serve(connection), "migrations: connection"))

    async def _serve(self, connection: socket.socket) -> None:
        link: Link | None = None
        kept = False
        try:
            async with asyncio.timeout(GREETING):
                link = await self.identity.accept(connection)
                hello = await link.hello()
            incoming = self._incoming.get(hello.migration)
            if incoming is None:
                raise LinkError(f"no migration {hello.migration!r} is expected here")
            if link.plain and not incoming.plain:
                raise LinkError("it is not encrypted, and the migration's settings do not say so (disableTLS)")
            if task := asyncio.current_task():
                self._greeting.discard(task)
            await incoming.take(link, hello.purpose)
            kept = hello.purpose is not Purpose.CONTROL
        except _BROKEN as error:
            logger.info("migrations: a connection ends: %s", error or "it said nothing in time")
        finally:
            if link and not kept:
                link.close()
