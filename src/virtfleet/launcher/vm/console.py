"""A console that the hypervisor shows as a terminal, served on a socket like that of a serial port.

Machines write their serial port to a socket by themselves. Containers have a terminal instead; this puts it behind a
socket of the same name, so that whoever attaches sees no difference. Neither side is ever ahead of the other by more
than the kernel and one buffer hold: a client that does not read stops the terminal, as flow control does on a line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_CHUNK = 4096


class Console:
    """Serves one terminal. What it says while nobody is attached goes to the log only, as with a serial port."""

    def __init__(self, terminal: str, socket: Path) -> None:
        self._socket = socket
        self._log = open(f"{socket}-log", "ab", buffering=0)  # noqa: SIM115 (lives as long as the console)
        self._terminal = os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        tty.setraw(self._terminal)
        self._attached: set[asyncio.StreamWriter] = set()
        self._typing = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._showing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._attach, self._socket)
        self._showing = tasks.keep(self._show, "console")

    async def close(self) -> None:
        if self._showing:
            self._showing.cancel()
            await asyncio.gather(self._showing, return_exceptions=True)
        if self._server:
            self._server.close()
        for writer in self._attached:
            writer.transport.abort()
        os.close(self._terminal)
        self._log.close()
        self._socket.unlink(missing_ok=True)

    async def _show(self) -> None:
        """Pass on what the terminal says, until the container has ended."""
        while data := await self._read():
            self._log.write(data)
            for writer in tuple(self._attached):
                writer.write(data)
                with suppress(ConnectionError):
                    await writer.drain()
        for writer in self._attached:
            writer.close()

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._attached.add(writer)
        try:
            while data := await reader.read(_CHUNK):
                async with self._typing:
                    await self._write(data)
        except OSError as error:
            logger.debug("somebody left the console: %s", error)
        finally:
            self._attached.discard(writer)
            writer.transport.abort()

    async def _read(self) -> bytes:
        """The next that the terminal says; nothing when its other end is closed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self._terminal, _CHUNK)
            except BlockingIOError:
                await self._until(loop.add_reader, loop.remove_reader)
            except OSError:
                return b""

    async def _write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                await self._until(loop.add_writer, loop.remove_writer)

    async def _until(self, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        """Wait until the terminal can be read or written."""
        possible = asyncio.Event()
        add(self._terminal, possible.set)
        try:
            await possible.wait()
        finally:
            remove(self._terminal)
