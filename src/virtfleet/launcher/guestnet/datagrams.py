"""A server that answers each datagram by itself, as those of DHCP and DHCPv6 do."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

logger = logging.getLogger(__name__)


async def answer(
    sock: socket.socket, name: str, reply: Callable[[bytes], bytes | None], to: tuple[str, int] | None = None
) -> asyncio.DatagramTransport:
    """Answer what comes to the socket until the transport is closed: whoever asked, or always `to`.

    Where `reply` is None nothing is sent. `name` is for the log.
    """
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Answering(name, reply, to), sock=sock)
    return transport


class _Answering(asyncio.DatagramProtocol):
    def __init__(self, name: str, reply: Callable[[bytes], bytes | None], to: tuple[str, int] | None) -> None:
        self._name = name
        self._reply = reply
        self._to = to
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        answer = self._reply(data)
        if answer and self._transport:
            self._transport.sendto(answer, self._to or addr)

    def error_received(self, exc: Exception) -> None:
        logger.warning("%s: %s", self._name, exc)
