"""Requests, streams and websockets to an API server, with as little between the caller and the wire as possible.

**What is repeated, and what is not.** A request that the server certainly did not act on (connection refused; 429, 500
or 503 with Retry-After) is repeated whatever it is. A request that may have been acted on (connection lost before the
answer, 502, 503, 504) is repeated only if doing it twice does no harm: reads, replacements, deletions, and every patch
but JSON patches. The repetition may then be answered with Conflict or NotFound although the first one succeeded, which
level-triggered callers take for what it is. A create is never repeated: with generateName it would leave two objects,
and with a name its AlreadyExists could not be told from somebody else's object. The caller gets the 503, looks again,
and knows. A 500 without Retry-After is most often a failing webhook and goes to the caller, as does a 429 without it:
that is how an eviction says that a disruption budget forbids it.

All of that within `patience` seconds, which rides out a restart of the API server; longer outages are for the back-off
of caches and queues. Whatever goes wrong is raised as `ApiError`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import aiohttp
import orjson
from prometheus_client import Counter, Histogram
from yarl import URL

from virtfleet import __version__
from virtfleet.kube.api import Patch
from virtfleet.kube.config import Config
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.errors import SILENT, ApiError
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

REQUESTS = Counter("kubevirt_rest_client_requests", "Requests to the API server", ["verb", "resource", "code"])
DURATION = Histogram("kubevirt_rest_client_request_latency_seconds", "Time until the answer was there", ["verb"])

# Of the server itself a request may take 60 seconds.
REQUEST_TIME = 65.0
CONNECT_TIME = 10.0
# A watch event is one line and can be as large as the largest object.
READ_BUFFER = 2 * 2**20
WARNINGS_REMEMBERED = 1000

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_R = TypeVar("_R")


class _Failure(Exception):
    """One attempt that failed, and what that means for another one."""

    def __init__(
        self, error: ApiError, *, transient: bool, untouched: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.transient = transient
        self.untouched = untouched  # certainly not acted on
        self.retry_after = retry_after


class Transport:
    """One server's connections and credentials.

    `idle` is how long a watch may be silent before the connection counts as dead: longer than the minute between two
    bookmarks, which no server promises where nothing changes.
    """

    def __init__(
        self,
        config: Config,
        *,
        user_agent: str = f"virtfleet/{__version__}",
        patience: float = 10.0,
        idle: float = 300.0,
    ) -> None:
        self._config = config
        self._user_agent = user_agent
        self._patience = patience
        self._idle = idle
        self._warned: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def namespace(self) -> str:
        """The namespace that the configuration names: that of the pod, or of the kubeconfig's context."""
        return self._config.namespace

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Watches hold a connection each for hours: a limit would starve the requests beside them.
            connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Inside a cluster compression costs more time than it saves.
            headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity", "Accept": "application/json, */*"},
            read_bufsize=READ_BUFFER,
            raise_for_status=_refuse_handshake,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def websocket(
        self, path: str, params: dict[str, str] | None = None, protocols: Iterable[str] = ()
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A websocket: console, VNC, exec. `protocols` are offered in this order."""

        async def attempt(settings: dict[str, Any]) -> tuple[int, aiohttp.ClientWebSocketResponse]:
            try:
                return 101, await self._open_session().ws_connect(
                    self._url(path, params), protocols=tuple(protocols), **settings
                )
            except aiohttp.WSServerHandshakeError as error:
                raise _refusal("GET", path, error.status, error.headers, b"") from error

        connection = await self._persist("connect", "", f"GET {path}", attempt, repeatable=True)
        try:
            yield connection
        finally:
            await connection.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        verb: str = "",
        resource: str = "",
        warnings: list[str] | None = None,
    ) -> bytes:
        """Any path of the server; the answer's body as it came. `verb` and `resource` are what it counts as.

        What the server warns of is added to `warnings`, for who has somebody to show it to, and else logged.
        """
        url = self._url(path, params)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIME, sock_connect=CONNECT_TIME)

        async def attempt(settings: dict[str, Any]) -> tuple[int, bytes]:
            if body is not None:
                settings["headers"]["Content-Type"] = content_type
            async with self._open_session().request(
                method, url, data=body, timeout=timeout, allow_redirects=False, **settings
            ) as response:
                if warnings is None:
                    self._log_warnings(response)
                else:
                    warnings.extend(_warnings(response))
                answer = await response.read()
                if response.status >= 300:
                    raise _refusal(method, path, response.status, response.headers, answer)
                return response.status, answer

        repeatable = method in ("GET", "PUT", "DELETE") or (method == "PATCH" and content_type != Patch.JSON)
        return await self._persist(verb or method.lower(), resource, f"{method} {path}", attempt, repeatable=repeatable)

    @asynccontextmanager
    async def _stream(
        self, verb: str, resource: str, path: str, params: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A GET whose body comes bit by bit."""
        url = self._url(path, params)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIME, sock_read=self._idle)

        async def attempt(settings: dict[str, Any]) -> tuple[int, aiohttp.ClientResponse]:
            response = await self._open_session().get(url, timeout=timeout, allow_redirects=False, **settings)
            self._log_warnings(response)
            if response.status >= 300:
                async with response:
                    raise _refusal("GET", path, response.status, response.headers, await response.read())
            return response.status, response

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in response.content.iter_any():
                    yield chunk
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _lost(f"GET {path}", error).error from error

        response = await self._persist(verb, resource, f"GET {path}", attempt, repeatable=True)
        try:
            yield chunks()
        finally:
            response.close()

    # -- the way to the wire

    async def _persist(
        self,
        verb: str,
        resource: str,
        what: str,
        attempt: Callable[[dict[str, Any]], Awaitable[tuple[int, _R]]],
        *,
        repeatable: bool,
    ) -> _R:
        """Attempt until it succeeds, is refused for good, or the patience is at its end."""
        give_up = time.monotonic() + self._patience
        backoff = Backoff(0.1, 2.0)
        renewed = False
        while True:
            try:
                grant = await self._config.grant()
                tls = self._config.tls(grant)
            except ConfigError as error:
                raise ApiError("Unauthorized", str(error)) from error
            settings = {
                "headers": {"Authorization": f"Bearer {grant.token}"} if grant.token else {},
                "ssl": tls or False,
                "server_hostname": self._config.tls_server_name if tls else None,
            }
            code: int | str = "<cancelled>"
            try:
                with DURATION.labels(verb).time():
                    code, result = await attempt(settings)
                return result
            except _Failure as error:
                failure, code = error, error.error.code
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure, code = _lost(what, error), "<error>"
            finally:
                REQUESTS.labels(verb, resource, code).inc()
            if failure.error.code == 401 and not renewed:
                renewed = True
                self._config.reject(grant)
                try:
                    if await self._config.grant() != grant:
                        continue
                except ConfigError as error:
                    raise ApiError("Unauthorized", str(error)) from error
            if not failure.transient or not (failure.untouched or repeatable):
                raise failure.error
            wait = max(backoff.next(), failure.retry_after or 0.0)
            if time.monotonic() + wait > give_up:
                raise failure.error
            logger.debug("%s: %s; trying again in %.1f s", what, failure.error.message, wait)
            await asyncio.sleep(wait)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is closed: use it as `async with Client(config) as api:`")
        return self._session

    def _url(self, path: str, params: dict[str, str] | None) -> URL:
        return URL(self._config.server + path).update_query(params or {})

    def _log_warnings(self, response: aiohttp.ClientResponse) -> None:
        for text in _warnings(response):
            if text not in self._warned and len(self._warned) < WARNINGS_REMEMBERED:
                self._warned.add(text)
                logger.warning("the API server warns: %s", text)


def _warnings(response: aiohttp.ClientResponse) -> list[str]:
    headers = response.headers.getall("Warning", ())
    return [re.sub(r"\\(.)", r"\1", text) for header in headers for text in _WARNING.findall(header)]


def _socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within 20 seconds that its peer is gone, even where nothing is ever sent."""
    made = socket.socket(*info[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2)):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _refuse_handshake(response: aiohttp.ClientResponse) -> None:
    """Why a websocket is refused stands in the answer's body, which aiohttp would not read."""
    if response.status >= 300 and "Sec-WebSocket-Key" in response.request_info.headers:
        body = await response.read()
        raise _refusal(response.method, response.url.path, response.status, response.headers, body)


def _refusal(method: str, path: str, code: int, headers: Any, body: bytes) -> _Failure:
    """From an answer that is not a success. Its body is a Status, or anything that a proxy on the way thought of."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        text = body[:200].decode("utf-8", "replace").strip()
        status = {"message": f"{method} {path}: the server answered {code}" + (f": {text}" if text else "")}
    error = ApiError.from_status(status, code)
    try:
        retry_after = float(headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    asked_again = retry_after is not None and code in (429, 500, 503)
    return _Failure(
        error, transient=asked_again or code in (502, 503, 504), untouched=asked_again, retry_after=retry_after
    )


def _unreached(error: Exception) -> str:
    """Why there is no connection, without the words that only programmers know."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or "no answer"
    cause = error.os_error
    verification = getattr(cause, "verify_message", "")  # of a certificate
    why = f"its certificate is not good: {verification}" if verification else cause.strerror or str(cause)
    return f"{error.host}:{error.port}: {why}"


def _lost(what: str, error: Exception) -> _Failure:
    """From a connection that did not come about, or broke."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientSSLError | aiohttp.ConnectionTimeoutError):
        # Neither time nor repetition makes a certificate valid.
        again = not isinstance(error, aiohttp.ClientSSLError)
        unreached = ApiError("ServiceUnavailable", f"{what}: no connection: {_unreached(error)}")
        return _Failure(unreached, transient=again, untouched=again)
    if isinstance(error, aiohttp.SocketTimeoutError):
        return _Failure(ApiError(SILENT, f"{what}: the server has gone silent", code=503), transient=True)
    if isinstance(error, TimeoutError):
        return _Failure(ApiError("Timeout", f"{what}: no answer within {REQUEST_TIME:.0f} s"), transient=True)
    reason = str(error) or type(error).__name__
    return _Failure(ApiError("ServiceUnavailable", f"{what}: the connection was lost: {reason}"), transient=True)
