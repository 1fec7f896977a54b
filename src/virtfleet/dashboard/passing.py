"""The pages' requests to the API server, passed on with the visitor's credential and nothing else of theirs."""

from __future__ import annotations

import aiohttp
from aiohttp import hdrs, web

from virtfleet.dashboard.paths import PREFIX, passage
from virtfleet.dashboard.visitors import Visitor
from virtfleet.kube import proxy
from virtfleet.kube.errors import ApiError
from virtfleet.work import tasks

LARGEST = 2 << 20
"""Bytes of an object that somebody sends."""
_OF_SOCKETS = ("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions")


async def pass_on(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    path = request.rel_url.raw_path.removeprefix(PREFIX)
    found = passage(request.method, path)
    if found is None:
        raise ApiError("Forbidden", "the dashboard does not pass such requests on")
    query = {name: value for name, value in request.query.items() if name != "secret"}
    if strange := set(query) - found.queries:
        raise ApiError("Forbidden", f"the dashboard does not pass {sorted(strange)[0][:50]!r} on")
    if found.stream:
        return await _stream(request, visitor, path, query)
    warnings: list[str] = []
    answer = await visitor.api.request(
        request.method,
        path,
        params=query,
        body=await body(request),
        warnings=warnings,
    )
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
