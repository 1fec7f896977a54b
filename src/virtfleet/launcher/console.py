"""A console that the hypervisor shows as a terminal, served on a socket like that of a serial port.

Machines write their serial port to a socket by themselves. Containers have a terminal instead; this puts it behind a
socket of the same name, so that whoever attaches sees no difference.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tty
from contextlib import suppress
from pathlib import Path

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
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._attach, self._socket)
        asyncio.get_running_loop().add_reader(self._terminal, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._terminal)
        if self._server:
            self._server.close()
        for writer in self._attached:
            writer.close()
        os.close(self._terminal)
        self._log.close()
        self._socket.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            data = os.read(self._terminal, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the other end is closed: the container has ended
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._terminal)
            return
        self._log.write(data)
        for writer in self._attached:
            writer.write(data)

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._attached.add(writer)
        try:
            while data := await reader.read(_CHUNK):
                with suppress(BlockingIOError):
                    os.write(self._terminal, data)
        except (ConnectionError, OSError) as error:
            logger.debug("somebody left the console: %s", error)
        finally:
            self._attached.discard(writer)
            writer.close()
