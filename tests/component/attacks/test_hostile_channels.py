"""Channels of a launcher that a guest has taken over: whatever it passes, its handler neither waits nor keeps it."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Thread

import pytest

from component.kube_fixtures import eventually
from virtfleet.handler.migration.links import Link, Purpose
from virtfleet.handler.migration.proxy import ChannelsOut, dial
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.protocol.channels import Channel
from virtfleet.protocol.wire import WireError

STALL = 0.5  # seconds that the event loop may stand still
MEMORY = b'{"channel":"memory"}'


class Taken:
    """A channels socket that answers the first packet of each connection by `attack`."""

    def __init__(self, pod: Path, attack: Callable[[socket.socket], None]) -> None:
        path = pod / VOLUMES / "sockets/channels-sock"
        path.parent.mkdir(parents=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._attack = attack
        self.thread = asyncio.create_task(asyncio.to_thread(self._run))

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            connection.recv(256)
            try:
                self._attack(connection)
            except OSError:
                return


def send(connection: socket.socket, *descriptors: int, data: bytes = MEMORY) -> None:
    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def lingering(connection: socket.socket) -> None:
    """A TCP connection with bytes under way that nobody takes: to close it takes a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = socket.create_connection(server.getsockname())
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                end.send(bytes(1 << 16))
        send(connection, end.fileno())
        # Aside, because it lingers here where the handler has been quicker.
        Thread(target=end.close, daemon=True).start()
        connection.recv(1)  # until the handler closes
        time.sleep(0.2)  # the server's end lives while the handler closes the other


def rubbish(connection: socket.socket) -> None:
    for _ in range(100):
        send(connection, *[0] * 200, data=b"\xff" * 256)


def wrong_channel(connection: socket.socket) -> None:
    near, far = socket.socketpair()
    with near, far:
        send(connection, far.fileno(), data=b'{"channel":"disks"}')


def nothing(connection: socket.socket) -> None:
    """It closes without an answer."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def steady() -> AsyncIterator[None]:
    """The event loop never stands still."""
    longest = 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    looking = asyncio.create_task(look())
    yield
    looking.cancel()
    assert longest < STALL


@pytest.mark.parametrize("attack", [lingering, rubbish, wrong_channel, nothing])
async def test_a_target_that_passes_anything(place: Path, steady: None, attack: Callable[..., None]) -> None:
    before = descriptors()
    taken = Taken(place / "pod", attack)
    with pytest.raises((WireError, OSError)):
        await asyncio.wait_for(dial(place / "pod", Channel.MEMORY), 10)
    await asyncio.wait_for(taken.thread, 10)
    await eventually(lambda: descriptors() <= before + 1)


async def test_a_source_that_passes_ever_more(place: Path, steady: None) -> None:
    """What comes while the other node does not answer is held in bounds."""

    async def call(_: Purpose) -> Link:
        await asyncio.Future()
        raise AssertionError

    def flood(connection: socket.socket) -> None:
        near, far = socket.socketpair()
        with near, far:
            while True:
                send(connection, far.fileno())

    before = descriptors()
    taken = Taken(place / "pod", flood)
    out = ChannelsOut("migration m1", place / "pod", call)
    await out.open()
    with pytest.raises(WireError, match="more connections"):
        await asyncio.wait_for(out.run(), 10)
    out.close()
    await asyncio.wait_for(taken.thread, 10)
    await eventually(lambda: descriptors() <= before + 1)
