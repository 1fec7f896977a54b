"""An HTTP client that costs next to nothing: what it spends is taken from the server that it measures.

One request at a time on a kept connection, TLS without checks, and of an answer only its status and where it ends.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from typing import cast

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._more: asyncio.Future[None] | None = None
        self._lost = False

    @classmethod
    async def open(cls, port: int) -> Connection:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port, ssl=context)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._wake()

    def close(self) -> None:
        self._transport.close()

    async def request(self, method: str, path: str, body: bytes = b"", content: str = "application/json") -> bytes:
        """The answer's body; where it came in chunks, with their sizes in it."""
        self._send(method, path, body, content)
        while (at := self._received.find(_END)) < 0:
            await self._receive()
        length = _LENGTH.search(self._received, 0, at)
        if length:
            size = at + len(_END) + int(length[1])
            while len(self._received) < size:
                await self._receive()
        else:
            while not self._received.endswith(_LAST_CHUNK):
                await self._receive()
        status, answer = int(self._received[9:12]), bytes(self._received[at + len(_END) :])
        self._received.clear()
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        return answer

    async def stream(self, path: str, wanted: re.Pattern[bytes]) -> AsyncIterator[list[bytes]]:
        """What `wanted` finds in the lines of an answer that does not end, as they come."""
        self._send("GET", path, b"", "application/json")
        while True:
            await self._receive()
            lines, newline, rest = self._received.rpartition(b"\n")
            if newline:
                self._received = rest
                if found := wanted.findall(lines):
                    yield found

    def _send(self, method: str, path: str, body: bytes, content: str) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    async def _receive(self) -> None:
        if self._lost:
            raise ConnectionError("the server closed the connection")
        self._more = asyncio.get_running_loop().create_future()
        await self._more

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
