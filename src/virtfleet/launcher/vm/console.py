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
from contextlib import suppress
from pathlib import Path

from virtfleet.work import sockets, tasks

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
        self._showing = tasks.Owned()

    async def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._attach, self._socket)
        self._showing.add(tasks.keep(self._show, "console"))

    async def close(self) -> None:
        await self._showing.end()
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
        while True:
            try:
                return os.read(self._terminal, _CHUNK)
            except BlockingIOError:
                await sockets.ready(self._terminal, writable=False)
            except OSError:
                return b""

    async def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._terminal, data) :]
            except BlockingIOError:
                await sockets.ready(self._terminal, writable=True)
