"""Connections of a migration, made by a launcher and passed to whoever asks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.waiting import eventually
from virtfleet.hypervisors.migration import Route
from virtfleet.launcher import channels
from virtfleet.launcher.channels import Channels
from virtfleet.protocol.channels import Channel, Line, Packet


class Pod:
    """A launcher's sockets."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "channels-sock"
        self.daemon = directory / "daemon"
        self.harmless = asyncio.Event()
        self.channels = Channels(self.path, str(self.daemon), self._parted)

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
            passed.send(b"from the target")
            assert await reader.read(64) == b"from the target"
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
    (await exchanged(line, Channel.LIBVIRT)).close()
    line.close()
    await asyncio.to_thread(eventually, lambda: not _listens(pod.path.with_name(Channel.LIBVIRT.value)))
    writer.write(b"finish")
    ended = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    assert not ended.done()
    pod.harmless.set()
    assert await asyncio.wait_for(ended, 5) == b""
    writer.close()


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
