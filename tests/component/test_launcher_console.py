"""A container's terminal behind a socket: nothing is lost in either direction, and nothing piles up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

import pytest
from kube_fixtures import eventually

from virtfleet.launcher.vm.console import Console


@pytest.fixture
async def container(place: Path) -> AsyncIterator[FileIO]:
    """The container's side of a terminal whose other side is served."""
    master, slave = os.openpty()
    os.set_blocking(master, False)
    console = Console(os.ttyname(slave), place / "console")
    os.close(slave)
    await console.start()
    with FileIO(master, "r+") as side:
        yield side
        await console.close()


async def test_what_is_said_and_typed_arrives_and_is_logged(container: FileIO, place: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(place / "console")
    writer.write(b"typed\n")
    await eventually(lambda: _read(container) == b"typed\n")
    container.write(b"said\n")
    assert await reader.readline() == b"said\n"
    assert (place / "console-log").read_bytes() == b"said\n"
    writer.close()


async def test_a_long_paste_arrives_whole(container: FileIO, place: Path) -> None:
    _, writer = await asyncio.open_unix_connection(place / "console")
    paste = bytes(range(256)) * 1024
    writer.write(paste)
    received = bytearray()
    await eventually(lambda: received.extend(_read(container)) or len(received) >= len(paste))
    assert received == paste
    writer.close()


async def test_a_client_that_does_not_read_stops_the_terminal_until_it_leaves(container: FileIO, place: Path) -> None:
    _, writer = await asyncio.open_unix_connection(place / "console")
    written = 0
    stalls = 0
    while stalls < 20:  # until nothing more gets through
        got_through = container.write(b"x" * 4096)
        written += got_through or 0
        stalls = 0 if got_through else stalls + 1
        await asyncio.sleep(0.01)
    assert written < 4 << 20, "somebody keeps it all in memory"
    writer.transport.abort()
    await eventually(lambda: (place / "console-log").stat().st_size >= written)


async def test_the_end_of_the_container_is_the_end_of_the_console(container: FileIO, place: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(place / "console")
    container.write(b"last words")
    assert await reader.readexactly(10) == b"last words"
    container.close()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


def _read(container: FileIO) -> bytes:
    return container.read(65536) or b""
