"""Connections of a migration, made by a launcher and passed to whoever asks."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import eventually
from virtfleet.hypervisors.migration import Route
from virtfleet.launcher import channels
from virtfleet.launcher.channels import TO_PREPARE, Answers, Channels
from virtfleet.protocol.channels import Channel, Line, Packet


class Pod:
    """A launcher's sockets."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "channels-sock"
        self.daemon = directory / "daemon"
        self.harmless = asyncio.Event()
        self.still = asyncio.Event()
        self.channels = Channels(self.path, str(self.daemon), self._prepared, self._parted)

    async def _prepared(self) -> None:
        await self.still.wait()

    async def _parted(self) -> None:
        await self.harmless.wait()

    def handler(self) -> Line:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(self.path))
        return Line(connection)


@pytest.fixture
async def pod(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pod]:
    with TemporaryDirectory(prefix="vf-c-") as place:
        monkeypatch.setattr(channels, "_DIRECTORY", place)
        monkeypatch.setattr(channels, "_PATIENCE", 0.3)
        route = Route(libvirt=f"{place}/libvirt", memory=f"{place}/memory", disks=f"{place}/disks")
        monkeypatch.setattr(channels, "ROUTE", route)
        made = Pod(Path(place))
        made.channels.start()
        yield made
        await made.channels.close()


def message(procedure: int, *, program: int = 0x20008086, kind: int = 1, body: bytes = b"") -> bytes:
    """As libvirt's daemons send it."""
    return struct.pack(">7I", 28 + len(body), program, 1, procedure, kind, 3, 0) + body


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


async def exchanged(line: Line, channel: Channel) -> socket.socket:
    received = await line.receive()
    assert received and received[0] == Packet(channel=channel) and received[1]
    return received[1]


async def test_a_target_dials_its_daemon_and_its_hypervisor_as_soon_as_that_listens(pod: Pod) -> None:
    line = pod.handler()
    await line.send(Packet(dial=Channel.MEMORY))
    await line.send(Packet(dial=Channel.LIBVIRT))
    with listen(pod.daemon) as daemon, await exchanged(line, Channel.LIBVIRT) as passed:
        passed.send(b"to the daemon")
        assert daemon.accept()[0].recv(64) == b"to the daemon"
    with listen(pod.daemon.with_name("memory")), await exchanged(line, Channel.MEMORY):
        pass
    await line.send(Packet(dial=Channel.DISKS))
    assert await line.receive() == (
        Packet(channel=Channel.DISKS, error="disks is not reached here: nobody listens"),
        None,
    )
    line.close()


async def test_a_source_passes_every_connection_until_its_handler_is_gone(pod: Pod) -> None:
    line = pod.handler()
    await line.send(Packet(serve=list(Channel)))
    for channel in (Channel.DISKS, Channel.LIBVIRT, Channel.DISKS):
        reader, writer = await _reached(pod.path.with_name(channel.value))
        with await exchanged(line, channel) as passed:
            passed.send(message(1))
            assert await reader.read(64) == message(1)
        writer.close()
    disks = pod.path.with_name(Channel.DISKS.value)
    before = os.stat(disks).st_ino
    successor = pod.handler()
    await successor.send(Packet(serve=[Channel.DISKS]))
    await asyncio.to_thread(eventually, lambda: os.path.exists(disks) and os.stat(disks).st_ino != before)
    line.close()
    await asyncio.to_thread(eventually, lambda: not _listens(pod.path.with_name(Channel.LIBVIRT.value)))
    _, writer = await _reached(disks)
    (await exchanged(successor, Channel.DISKS)).close()
    writer.close()
    successor.close()


async def test_libvirt_keeps_its_connection_while_its_loss_would_do_harm_though_the_handler_dies(pod: Pod) -> None:
    line = pod.handler()
    await line.send(Packet(serve=list(Channel)))
    reader, writer = await _reached(pod.path.with_name(Channel.LIBVIRT.value))
    pod.still.set()
    with await exchanged(line, Channel.LIBVIRT) as passed:
        passed.send(message(TO_PREPARE))
        assert await reader.readexactly(28) == message(TO_PREPARE)
    line.close()
    await asyncio.to_thread(eventually, lambda: not _listens(pod.path.with_name(Channel.LIBVIRT.value)))
    writer.write(b"finish")
    ended = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    assert not ended.done()
    pod.harmless.set()
    assert await asyncio.wait_for(ended, 5) == b""
    writer.close()


async def test_libvirt_hears_of_a_loss_at_once_before_the_target_has_prepared_itself(pod: Pod) -> None:
    """It may wait there for an answer with the domain locked, and nobody could ask it whether that does harm."""
    line = pod.handler()
    await line.send(Packet(serve=list(Channel)))
    reader, writer = await _reached(pod.path.with_name(Channel.LIBVIRT.value))
    with await exchanged(line, Channel.LIBVIRT) as passed:
        passed.send(message(60))
    assert await asyncio.wait_for(reader.read(), 5) == message(60)
    writer.close()
    line.close()


async def test_what_libvirt_ends_is_over_for_the_handler(pod: Pod) -> None:
    line = pod.handler()
    await line.send(Packet(serve=list(Channel)))
    _, writer = await _reached(pod.path.with_name(Channel.LIBVIRT.value))
    with await exchanged(line, Channel.LIBVIRT) as passed:
        writer.write(b"last words")
        writer.close()
        passed.setblocking(True)
        passed.settimeout(5)
        assert await asyncio.to_thread(passed.recv, 64) == b"last words"
        assert await asyncio.to_thread(passed.recv, 64) == b""
    line.close()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        return connection.connect_ex(str(path)) != errno.ECONNREFUSED


async def _reached(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection as soon as the launcher listens."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await asyncio.open_unix_connection(path)
            except OSError:
                await asyncio.sleep(0)


async def test_libvirt_hears_that_the_target_is_ready_when_the_guest_is(pod: Pod) -> None:
    line = pod.handler()
    await line.send(Packet(serve=[Channel.LIBVIRT]))
    reader, writer = await _reached(pod.path.with_name(Channel.LIBVIRT.value))
    with await exchanged(line, Channel.LIBVIRT) as passed:
        passed.send(message(60) + message(TO_PREPARE, body=b"ready"))
        assert await reader.readexactly(28) == message(60)
        rest = asyncio.ensure_future(reader.readexactly(33))
        await asyncio.sleep(0)
        assert not rest.done()
        pod.still.set()
        assert await asyncio.wait_for(rest, 5) == message(TO_PREPARE, body=b"ready")
        passed.send(bytes(28))
        assert await asyncio.wait_for(reader.read(), 5) == b"", "what is no message ends the connection"
    writer.close()
    line.close()


MESSAGES = st.builds(
    lambda procedure, kind, program, body: (
        procedure if kind == 1 and program == 0x20008086 else 0,
        message(procedure, kind=kind, program=program, body=body),
    ),
    st.integers(1, 400),
    st.integers(0, 4),
    st.sampled_from([0x20008086, 0x6B656570]),
    st.binary(max_size=40),
)


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_answers_are_told_apart_in_whatever_pieces_they_come(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    stream, answers, pieces, at = b"".join(m for _, m in sent), Answers(), [], 0
    for size in itertools.cycle(sizes):
        if at >= len(stream):
            break
        pieces += answers.split(stream[at : at + size])
        at += size
    assert b"".join(piece for piece, _ in pieces) == stream
    assert [answered for _, answered in pieces if answered] == [procedure for procedure, _ in sent if procedure]
