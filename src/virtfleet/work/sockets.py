"""Sockets that asyncio's own calls cannot do for: waiting for one that does not block, and letting go of one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


async def ready(of: socket.socket | IO[bytes] | int, *, writable: bool) -> None:
    """Until there may be something to read, or room to write. Raises ConnectionAbortedError where it is closed."""
    loop, number = asyncio.get_running_loop(), of if isinstance(of, int) else of.fileno()
    if number < 0:
        raise ConnectionAbortedError("the connection has been closed")
    add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
    waiting: asyncio.Future[None] = loop.create_future()
    add(number, _settle, waiting)
    try:
        await waiting
    finally:
        remove(number)


@contextmanager
def kept(connection: socket.socket) -> Iterator[None]:
    """Where something goes wrong with a connection it is closed; else it goes on after the context."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
