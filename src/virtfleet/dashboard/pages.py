"""The files of the pages, as web/ was built: read once, held compressed, served with a fresh nonce for styles."""

from __future__ import annotations

import gzip
import mimetypes
import secrets
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from aiohttp import web

from virtfleet.dashboard.guard import POLICY
from virtfleet.kube.errors import ApiError

_NONCE = "@NONCE@"
_INDEX = "index.html"
# Names of files hold a digest of what is in them.
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class File:
    """One file, plain and compressed."""

    kind: str
    plain: bytes
    packed: bytes


@cache
def built() -> dict[str, File]:
    """What is served, by name."""
    served = {}
    for entry in files("virtfleet.dashboard").joinpath("static").iterdir():
        kind = mimetypes.guess_type(entry.name)[0]
        if entry.is_file() and kind:
            data = entry.read_bytes()
            served[entry.name] = File(kind, data, gzip.compress(data, 6, mtime=0))
    return served


async def index(_: web.Request) -> web.StreamResponse:
    """The one page. Libraries add styles of their own, which browsers take with the nonce only."""
    nonce = secrets.token_urlsafe(16)
    page = built()[_INDEX].plain.decode().replace(_NONCE, nonce)
    return web.Response(
        text=page, content_type="text/html", headers={"Content-Security-Policy": POLICY.format(nonce=nonce)}
    )


async def asset(request: web.Request) -> web.StreamResponse:
    file = built().get(request.match_info["name"])
    if file is None or request.match_info["name"] == _INDEX:
        raise ApiError("NotFound", "there is no such file")
    packed = "gzip" in request.headers.get("Accept-Encoding", "")
    headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding", "Content-Type": file.kind}
    if packed:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=file.packed if packed else file.plain, headers=headers)
