"""The way to a port of a guest on vsock, which the node's kernel has: plain, or by TLS as KubeVirt's clients know it.

In TLS, the guest's server is the one that wants to know who calls. It is shown a certificate that only handlers have,
and checks it against what `authorityport` tells it. Its own certificate it made itself, so that nobody can check that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

from virtfleet.handler.access.answers import FALSE, TRUE
from virtfleet.handler.access.seats import End
from virtfleet.kube import certificates
from virtfleet.kube.certificates import Credential
from virtfleet.kube.errors import ApiError
from virtfleet.work import sockets

logger = logging.getLogger(__name__)

MOST = 64  # connections to one guest at once
_ANY_PORT = (1 << 32) - 1
_PATIENCE = 10.0  # seconds for a connection, and again for a handshake

Dial = Callable[[int, int], Awaitable[socket.socket]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreached(Exception):
    """There is no connection, for one of the reasons that sessions end for."""

    def __init__(self, end: End) -> None:
        super().__init__(end.value)
        self.end = end


def asked(query: Mapping[str, str]) -> tuple[int, bool]:
    """The port that a request asks for, and whether to speak TLS there: without a word about that, as in KubeVirt."""
    port, tls = query.get("port", ""), query.get("tls") or "true"
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= len(str(_ANY_PORT)) else 0
    if not 0 < number < _ANY_PORT:
        raise ApiError("BadRequest", f"port {port!r} is none; give a number from 1 to {_ANY_PORT - 1}")
    if tls not in (*TRUE, *FALSE):
        raise ApiError("BadRequest", f"tls {tls!r} is neither true nor false")
    return number, tls in TRUE


async def dial(cid: int, port: int) -> socket.socket:
    """A connection from this node's kernel."""
    connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    with sockets.kept(connection):
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (cid, port))
    return connection


class Vsock:
    """`credential` is what guests are shown, None while there is none."""

    def __init__(self, credential: Callable[[], Credential | None], dial: Dial = dial) -> None:
        self._credential = credential
        self._dial = dial

    def context(self) -> ssl.SSLContext:
        """What is needed for TLS."""
        credential = self._credential()
        if credential is None:
            raise ApiError(
                "ServiceUnavailable",
                "virt-handler has no certificate for guests yet, which virt-operator makes; use tls=false meanwhile",
            )
        context = certificates.client_context(credential=credential, insecure=True)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    async def connect(self, cid: int, port: int, context: ssl.SSLContext | None) -> Streams:
        """A connection to a guest; raises Unreached."""
        try:
            async with asyncio.timeout(_PATIENCE):
                connection = await self._dial(cid, port)
        except OSError as error:  # TimeoutError among them
            logger.info("vsock %d:%d: %s", cid, port, _words(error))
            raise Unreached(End.UNREACHED) from None
        if context is None:
            return await asyncio.open_connection(sock=connection)
        try:
            return await asyncio.open_connection(
                sock=connection, ssl=context, server_hostname="", ssl_handshake_timeout=_PATIENCE
            )
        except OSError as error:
            connection.close()
            logger.info("vsock %d:%d: TLS: %s", cid, port, _words(error))
            raise Unreached(End.NO_TLS) from None


def _words(error: OSError) -> str:
    return str(error) or "no answer in time"
