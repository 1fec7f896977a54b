"""The pages' requests to the API server, passed on with the visitor's credential and nothing else of theirs.

The server is no general proxy: a page that went wrong, or somebody who got hold of one, reaches VMs and nothing else.
What the visitor may do with them is for the API server to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web

from virtfleet.api.subresources import GROUP, VERSIONS
from virtfleet.dashboard.visitors import Visitor
from virtfleet.kube import proxy
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import VMI_MIGRATIONS, VMIS, VMS
from virtfleet.work import tasks

LARGEST = 2 << 20
"""Bytes of an object that somebody sends."""
_OF_SOCKETS = ("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions")


PREFIX = "/k8s"
_NAME = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_PLACE = rf"/namespaces/{_NAME}"
_STEPS = rf"/apis/{re.escape(GROUP)}/{VERSIONS[0]}{_PLACE}"
_STREAMS = "console|vnc"
_OF_VM = "start|stop|restart|migrate"
_OF_VMI = "pause|unpause|softreboot|reset"


@dataclass(frozen=True, slots=True)
class Passage:
    """Requests of one kind that are passed on."""

    methods: tuple[str, ...]
    path: str
    queries: frozenset[str] = frozenset()
    stream: bool = False


_WRITES = frozenset(("dryRun", "fieldValidation"))
PASSAGES = (
    Passage(("POST",), rf"{VMS.root}{_PLACE}/{VMS.plural}", _WRITES),
    Passage(("PUT", "DELETE"), rf"{VMS.root}{_PLACE}/{VMS.plural}/{_NAME}", _WRITES),
    Passage(("DELETE",), rf"{VMIS.root}{_PLACE}/(?:{VMIS.plural}|{VMI_MIGRATIONS.plural})/{_NAME}", _WRITES),
    Passage(("PUT",), rf"{_STEPS}/{VMS.plural}/{_NAME}/(?:{_OF_VM})"),
    Passage(("PUT",), rf"{_STEPS}/{VMIS.plural}/{_NAME}/(?:{_OF_VMI})"),
    Passage(("GET",), rf"{_STEPS}/{VMIS.plural}/{_NAME}/(?:{_STREAMS})", frozenset(("preserveSession",)), stream=True),
)


def passage(method: str, raw_path: str) -> Passage | None:
    """How a request is passed on, by its path as it came: what is encoded or climbs matches nothing."""
    return next((p for p in PASSAGES if method in p.methods and re.fullmatch(p.path, raw_path)), None)


def is_name(text: object) -> bool:
    """Whether it can be the name of an object or of a namespace."""
    return isinstance(text, str) and re.fullmatch(_NAME, text) is not None


async def pass_on(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    path = request.rel_url.raw_path.removeprefix(PREFIX)
    allowed = passage(request.method, path)
    if allowed is None:
        raise ApiError("Forbidden", "the dashboard does not pass such requests on")
    query = {name: value for name, value in request.query.items() if name != "secret"}
    if strange := set(query) - allowed.queries:
        raise ApiError("Forbidden", f"the dashboard does not pass {sorted(strange)[0][:50]!r} on")
    if allowed.stream:
        return await _stream(request, visitor, path, query)
    answer = await visitor.api.request(request.method, path, params=query, body=await body(request), warnings=[])
    return web.Response(body=answer, content_type="application/json")


async def body(request: web.Request) -> bytes | None:
    """What was sent, if it is of a size that objects have."""
    if not request.body_exists:
        return None
    if request.content_type != "application/json":
        raise ApiError("UnsupportedMediaType", "only JSON is taken")
    read = bytearray()
    async for chunk in request.content.iter_chunked(1 << 16):
        read += chunk
        if len(read) > LARGEST:
            raise ApiError("RequestEntityTooLarge", f"more than {LARGEST >> 20} MiB were sent")
    return bytes(read)


async def _stream(request: web.Request, visitor: Visitor, path: str, query: dict[str, str]) -> web.StreamResponse:
    """A console or a screen: bytes between the page and the guest, of which the server knows nothing."""
    if request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
        raise ApiError("BadRequest", "this is a websocket")
    grant = await visitor.config.grant()
    headers = {name: request.headers[name] for name in _OF_SOCKETS if name in request.headers}
    if grant.token:
        headers["Authorization"] = f"Bearer {grant.token}"
    url = visitor.config.server + path + ("?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else "")

    async def forward() -> web.StreamResponse:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            return await proxy.forward(
                request,
                session,
                url,
                ssl=visitor.config.tls(grant),
                headers=headers,
                server_name=visitor.config.tls_server_name,
            )

    forwarding = tasks.held(forward(), "a console or a screen")
    visitor.streams.add(forwarding)  # type: ignore[arg-type]  # of what it comes to nobody asks
    try:
        return await forwarding
    finally:
        forwarding.cancel()
