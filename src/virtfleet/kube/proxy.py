"""A request passed on to another server, its answer passed back: to aggregated APIs, node agents and virt-handlers.

Bodies stream in both directions and slow readers slow the other side down. An upgraded connection (websocket) becomes
two streams of bytes, so that everything inside it, subprotocols, pings, fragments and the closing handshake, is between
its two ends. A stream that breaks off on one side breaks off on the other; it never ends there as if it were complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from ssl import SSLContext

import aiohttp
from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import StreamWriter
from multidict import CIMultiDict
from yarl import URL

from virtfleet.kube.errors import ApiError
from virtfleet.work.tasks import first_of

# What belongs to one connection, not to the message.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",  # has been met when the request gets here
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_CONNECT_TIMEOUT = 10.0
_BUFFER = 1 << 16
_LAST_BYTES = 5.0  # seconds that what is under way has when a tunnel has ended
# aiohttp tells a handler that its client is gone only when it writes; quiet streams look for themselves.
_GONE_CHECK = 2.0


async def forward(
    request: web.Request,
    session: aiohttp.ClientSession,
    url: str,
    *,
    ssl: SSLContext | None,
    headers: Mapping[str, str],
    server_name: str | None = None,
    body: bytes | None = None,
    patience: float | None = None,
) -> web.StreamResponse:
    """Pass the request on to `url` (query included). `headers` is all that the other server gets to see of them;
    `server_name` is what its certificate must say, where that is not the host of the URL; `body` is the request's,
    where it has been read already; `patience` is how many seconds the other server may be silent."""
    upgrade = request.headers.get(hdrs.UPGRADE)
    sent = passed_on(headers)
    if upgrade:
        sent.extend({hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: upgrade})
    try:
        answer = await session.request(
            request.method,
            URL(url, encoded=True),
            headers=sent,
            data=body if body is not None else request.content if request.body_exists else None,
            ssl=ssl if ssl is not None else True,
            server_hostname=server_name,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=patience),
            allow_redirects=False,
            read_until_eof=not upgrade,
        )
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiError("ServiceUnavailable", f"error trying to reach service: {explain(error)}") from error
    try:
        if answer.status == 101:
            return await _tunnel(request, answer)
        return await _stream(request, answer)
    finally:
        answer.close()


def explain(error: BaseException) -> str:
    """Why a server could not be reached, without aiohttp's notes about its own objects."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return str(error) or ("deadline exceeded" if isinstance(error, TimeoutError) else type(error).__name__)


def passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that go with a message from one connection to another."""
    kept = CIMultiDict(headers)
    for name in _HOP_BY_HOP | {"host"}:
        kept.popall(name, None)
    return kept


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed_on(answer.headers))
    await response.prepare(request)

    async def copy() -> None:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()

    try:
        await _while_there(request, copy())
    except aiohttp.ClientError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer broke off") from error
    return response


async def _tunnel(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    connection = answer.connection
    if connection is None or connection.protocol is None:
        raise ApiError("ServiceUnavailable", "error trying to reach service: the connection was lost")
    ours, theirs = request.protocol, connection.protocol
    headers = passed_on(answer.headers)
    headers.extend({hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: answer.headers.get(hdrs.UPGRADE, "")})
    response = web.StreamResponse(status=101, reason=answer.reason, headers=headers)
    response.force_close()  # when the tunnel ends, so does the connection
    writer = await response.prepare(request)
    assert writer is not None
    from_client, from_server = _Inlet(ours), _Inlet(theirs)
    ours.set_parser(from_client)  # type: ignore[arg-type]  # all it asks of a parser is to be fed
    theirs.set_parser(from_server, from_server.reader)
    for inlet, protocol in ((from_client, ours), (from_server, theirs)):
        if not protocol.connected:  # it was lost before anybody listened, and nothing will say so again
            inlet.feed_eof()
    loop = asyncio.get_running_loop()
    directions = _pump(from_client.reader, StreamWriter(theirs, loop)), _pump(from_server.reader, writer)
    try:
        await first_of(*directions, forgiven=(OSError, aiohttp.ClientError))
    finally:  # closing waits for an end that does not read what is under way, and that one may wait for this
        for transport in filter(None, (ours.transport, theirs.transport)):
            loop.call_later(_LAST_BYTES, transport.abort)
    return response


class _Inlet:
    """What aiohttp hands the bytes of an upgraded connection to. A full reader stops the connection's reading."""

    def __init__(self, protocol: BaseProtocol) -> None:
        self.reader = aiohttp.StreamReader(protocol, _BUFFER, loop=asyncio.get_running_loop())

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if data:
            self.reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self.reader.feed_eof()


async def _pump(reader: aiohttp.StreamReader, writer: AbstractStreamWriter) -> None:
    async for chunk in reader.iter_any():
        await writer.write(chunk)
        await writer.drain()


async def _while_there(request: web.Request, work: Coroutine[None, None, None]) -> None:
    """Do the work, but not for a client that has gone."""

    async def stays() -> None:
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(_GONE_CHECK)
        raise ConnectionResetError("the client is gone")

    await first_of(work, stays(), forgiven=())
