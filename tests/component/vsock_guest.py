"""A server in a guest, on a vsock port that a unix socket stands in for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from access_node import LIFE

from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Profile


class GuestServer:
    """A server in the guest that echoes, for many at once; with `trust`, by TLS for callers of these authorities."""

    def __init__(self, path: Path, trust: bytes = b"") -> None:
        self._path = path
        self._context: ssl.SSLContext | None = None
        if trust:
            own = Authority.create("guest", LIFE).issue(Profile("guest", LIFE, hosts=("guest",)))
            self._context = certificates.server_context(own, clients=trust, required=True)
        self.open = 0
        self.callers: list[str] = []
        self.versions: set[str] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> GuestServer:
        await self._stack.enter_async_context(self._serving())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._echo, self._path, ssl=self._context)
        try:
            yield
        finally:
            server.close()
            self._path.unlink()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if tls := writer.get_extra_info("ssl_object"):
                names = dict(pair for part in tls.getpeercert()["subject"] for pair in part)
                self.callers.append(names["commonName"])
                self.versions.add(tls.version())
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
                if data == b"end" or (not self._context and data.startswith(b"\x16\x03")):
                    return  # of a ClientHello, a server that speaks no TLS makes nothing
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()
