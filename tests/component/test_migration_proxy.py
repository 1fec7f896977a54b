"""Connections between the handlers of two nodes: who may make them, and what becomes of the bytes on them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from handler_kit import HANDLERS, credential
from kube_fixtures import eventually
from launcher_channels import LauncherChannels, passed

from virtfleet.handler.migration.links import Hello, Identity, Link, LinkError, Purpose, Word
from virtfleet.handler.migration.proxy import MOST_CONNECTIONS, ChannelsOut, Incoming, Proxy
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.protocol.channels import Channel
from virtfleet.protocol.wire import WireError

MIB = 1 << 20
ME = Identity(credential, HANDLERS)


class Nodes:
    """Two launchers, the source's channels out and the target's listener."""

    def __init__(self, place: Path, *, plain: bool) -> None:
        self.source, self.target = LauncherChannels(place / "a"), LauncherChannels(place / "b")
        self.proxy = Proxy(ME, "127.0.0.1")
        self.heard = asyncio.Event()
        self.incoming = Incoming("m1", place / "b", "<domain/>", self.heard.set, plain=plain)
        self.proxy.expect(self.incoming)
        self.plain = plain
        self.out = ChannelsOut("migration m1", place / "a", self.call)
        self.running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.out.open()
        await self.out.run()

    async def call(self, purpose: Purpose, uid: str = "m1") -> Link:
        hello = Hello(migration=uid, purpose=purpose)
        return await ME.dial("127.0.0.1", self.proxy.port, hello, plain=self.plain)

    async def connected(self, channel: Channel = Channel.MEMORY) -> tuple[socket.socket, socket.socket]:
        """Both ends of a channel, as the two launchers have them."""
        before = len(self.target.ends)
        await eventually(lambda: self.source.served)
        near = await passed(self.source.served[0], channel)
        await eventually(lambda: len(self.target.ends) > before)
        assert self.target.ends[-1][0] is channel
        return near, self.target.ends[-1][1]

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.out.close()
        self.proxy.close()
        await self.source.close()
        await self.target.close()


@pytest.fixture(params=["tls", "plain"])
async def nodes(place: Path, request: pytest.FixtureRequest) -> AsyncIterator[Nodes]:
    made = Nodes(place, plain=request.param == "plain")
    yield made
    await made.close()


def pour(end: socket.socket, data: bytes, times: int) -> None:
    for _ in range(times):
        end.sendall(data)
    end.shutdown(socket.SHUT_WR)


def drained(end: socket.socket) -> tuple[int, str]:
    count, digest = 0, hashlib.sha1(usedforsecurity=False)
    while data := end.recv(MIB):
        count += len(data)
        digest.update(data)
    return count, digest.hexdigest()


async def test_bytes_go_both_ways_and_each_way_ends_by_itself(nodes: Nodes) -> None:
    near, far = await nodes.connected()
    data = os.urandom(MIB)
    with near:
        pouring = threading.Thread(target=pour, args=(near, data, 64))
        pouring.start()
        count, digest = await asyncio.to_thread(drained, far)
        pouring.join()
        assert (count, digest) == (64 * MIB, hashlib.sha1(data * 64, usedforsecurity=False).hexdigest())
        far.sendall(b"answer after the end")  # the other way is open still
        assert await asyncio.to_thread(near.recv, 64) == b"answer after the end"
        far.close()
        assert await asyncio.to_thread(near.recv, 1) == b""


async def test_a_slow_side_slows_the_other_down(nodes: Nodes) -> None:
    """What nobody reads is held in bounds, and no thread turns in circles meanwhile."""
    near, far = await nodes.connected(Channel.DISKS)
    near.setblocking(False)
    sent, piece = 0, b"x" * MIB
    quiet = 0
    while quiet < 20 and sent < 512 * MIB:
        try:
            sent += near.send(piece)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            await asyncio.sleep(0.02)
    assert sent < 64 * MIB, "somebody holds all of it"
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.25
    near.close()
    assert (await asyncio.to_thread(drained, far))[0] == sent


async def test_everything_ends_with_the_migration(nodes: Nodes) -> None:
    ends = [await nodes.connected(channel) for channel in (Channel.LIBVIRT, Channel.MEMORY, Channel.DISKS)]
    nodes.proxy.forget("m1")
    for near, far in ends:
        assert await asyncio.to_thread(far.recv, 1) == b""
        with near, suppress(ConnectionError):
            assert await asyncio.to_thread(near.recv, 1) == b""
    with pytest.raises((LinkError, OSError)):
        await (await nodes.call(Purpose.CONTROL)).word()


async def test_a_launcher_that_opens_nothing_ends_the_connection(nodes: Nodes) -> None:
    nodes.target.refusal = "libvirt does not run"
    await eventually(lambda: nodes.source.served)
    with await passed(nodes.source.served[0], Channel.LIBVIRT) as near, suppress(ConnectionError):
        assert await asyncio.to_thread(near.recv, 1) == b""


async def test_a_launcher_has_no_more_connections_than_a_migration_needs(nodes: Nodes) -> None:
    await eventually(lambda: nodes.source.served)
    ends = []
    for _ in range(MOST_CONNECTIONS + 1):
        with suppress(OSError):
            ends.append(await passed(nodes.source.served[0], Channel.DISKS))
    with pytest.raises(WireError, match="more connections"):
        await asyncio.wait_for(asyncio.shield(nodes.running), 10)
    for end in ends:
        end.close()


async def test_handlers_speak_about_a_migration(nodes: Nodes) -> None:
    link = await nodes.call(Purpose.CONTROL)
    assert await link.word() == Word(document="<domain/>")
    await nodes.incoming.say(complete=True)
    assert await link.word() == Word(complete=True)
    await link.send(Word(source_ended=True))
    await asyncio.wait_for(nodes.heard.wait(), 5)
    assert nodes.incoming.source_ended
    second = await nodes.call(Purpose.CONTROL)
    with pytest.raises((LinkError, OSError)):
        await second.word()
    second.close()
    link.close()
    async with asyncio.timeout(5):
        while True:
            with suppress(LinkError, OSError):
                link = await nodes.call(Purpose.CONTROL)
                assert await link.word() == Word(document="<domain/>", complete=True)
                break
    link.close()


async def test_an_unknown_migration_is_refused(nodes: Nodes) -> None:
    for purpose in (Purpose.CONTROL, Purpose.MEMORY):
        link = await nodes.call(purpose, uid="m2")
        with pytest.raises((LinkError, OSError)):
            await asyncio.wait_for(link.word(), 5)
        link.close()
    assert not nodes.target.ends


@pytest.fixture
async def secured(place: Path) -> AsyncIterator[Nodes]:
    made = Nodes(place, plain=False)
    yield made
    await made.close()


async def refused(identity: Identity, nodes: Nodes, *, plain: bool = False) -> None:
    hello = Hello(migration="m1", purpose=Purpose.CONTROL)
    with pytest.raises((LinkError, OSError)):
        link = await identity.dial("127.0.0.1", nodes.proxy.port, hello, plain=plain)
        await asyncio.wait_for(link.word(), 5)


async def test_nobody_but_handlers_of_this_installation_gets_in(secured: Nodes) -> None:
    await refused(ME, secured, plain=True)
    await refused(Identity(lambda: credential("kubevirt:virt-api"), HANDLERS), secured)
    await refused(Identity(lambda: credential("other:virt-handler"), HANDLERS), secured)
    day = Lifespan(timedelta(days=1), timedelta(hours=1))
    stranger = Authority.create("stranger", day)
    forged = stranger.issue(Profile(HANDLERS, day, hosts=("virt-handler",), client=True))
    trusting = certificates.Credential(forged.certificate, forged.key, credential().bundle)
    await refused(Identity(lambda: trusting, HANDLERS), secured)
    nameless = certificates.client_context(credential().bundle)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(without_certificate, nameless, secured.proxy.port)
    assert not secured.heard.is_set()


def without_certificate(context: ssl.SSLContext, port: int) -> None:
    plain = socket.create_connection(("127.0.0.1", port), timeout=5)
    with context.wrap_socket(plain, server_hostname="virt-handler") as secured:
        if not secured.recv(1):
            raise ConnectionError("it ended")


async def test_a_handler_speaks_to_no_other_server(secured: Nodes) -> None:
    other = Proxy(Identity(lambda: credential("kubevirt:virt-api"), HANDLERS), "127.0.0.1")
    other.listen()
    hello = Hello(migration="m1", purpose=Purpose.MEMORY)
    with pytest.raises(LinkError, match="virt-api"):
        await ME.dial("127.0.0.1", other.port, hello, plain=False)
    other.close()


async def test_words_that_are_none_end_the_connection(nodes: Nodes) -> None:
    for rubbish in (b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x01{", b"GET / HTTP/1.1\r\n\r\n"):
        link = await nodes.call(Purpose.CONTROL)
        await link.word()
        link.connection.send(rubbish)
        with pytest.raises((LinkError, OSError)):
            await asyncio.wait_for(link.word(), 5)
        link.close()
