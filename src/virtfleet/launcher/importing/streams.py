"""Images as they come in: read in pieces, unpacked on the way, never whole in memory."""

from __future__ import annotations

import base64
import hashlib
import lzma
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from virtfleet.launcher.importing import images
from virtfleet.launcher.importing.images import Hopeless
from virtfleet.protocol import importing
from virtfleet.protocol.importing import Job

PIECE: Final = 1 << 20
_SILENCE: Final = 60.0  # seconds in which a server has to say something
_MEMORY: Final = 80 << 20  # that unpacking may take; what `xz -9` asks for is 65 MiB
_ALGORITHMS: Final = ("md5", "sha1", "sha256", "sha512")
_SCHEMES: Final = ("http", "https")


class Trouble(Exception):
    """What may go better the next time."""


class Readable(Protocol):
    """Something to read from; nothing at all is the end."""

    def read(self, size: int, /) -> bytes: ...


class Head:
    """A stream whose beginning can be looked at before it is read."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._head = b""

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (piece := self._source.read(size - len(self._head))):
            self._head += piece
        return self._head[:size]

    def read(self, size: int) -> bytes:
        if self._head:
            piece, self._head = self._head[:size], self._head[size:]
            return piece
        return self._source.read(size)


class _Unpacked:
    """A packed stream as it was before. Several that follow each other are one, as their tools have it."""

    def __init__(self, source: Readable, packing: str) -> None:
        self._pieces = _unpacked(source, packing)
        self._left = b""

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = next(self._pieces, b"")
        piece, self._left = self._left[:size], self._left[size:]
        return piece


def _unpacked(source: Readable, packing: str) -> Iterator[bytes]:
    waiting = source.read(PIECE)
    while waiting:
        unpack = _gzip() if packing == "gzip" else _xz()
        while not unpack.eof:
            if not waiting and unpack.hungry and not (waiting := source.read(PIECE)):
                raise Trouble("the packed image ends too early")
            try:
                piece, waiting = unpack.feed(waiting)
            except (zlib.error, lzma.LZMAError) as error:
                raise Hopeless(f"the image cannot be unpacked: {error}") from None
            if piece:
                yield piece
        waiting = (unpack.rest or source.read(PIECE)).lstrip(b"\0")  # archives may be padded


class _gzip:
    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def hungry(self) -> bool:
        return not self._unpack.unconsumed_tail

    @property
    def rest(self) -> bytes:
        return self._unpack.unused_data

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        piece = self._unpack.decompress(data, PIECE)
        return piece, self._unpack.unconsumed_tail


class _xz:
    def __init__(self) -> None:
        self._unpack = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def hungry(self) -> bool:
        return self._unpack.needs_input

    @property
    def rest(self) -> bytes:
        return self._unpack.unused_data

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        return self._unpack.decompress(data, PIECE), b""


def unpacked(source: Readable) -> Head:
    """A stream without the packing that it may have; packing within packing stays."""
    head = Head(source)
    if packing := images.compression(head.peek(images.HEAD)):
        return Head(_Unpacked(head, packing))
    return head


class Counted:
    """A stream that has to have a length and a checksum, if they are known."""

    def __init__(self, source: Readable, length: int | None, checksum: str = "") -> None:
        self._source, self._length, self._read = source, length, 0
        algorithm, _, self._sum = checksum.lower().partition(":")
        if checksum and algorithm not in _ALGORITHMS:
            raise Hopeless(f"checksum: {algorithm!r} is not one of {', '.join(_ALGORITHMS)}")
        self._hash = hashlib.new(algorithm, usedforsecurity=False) if checksum else None

    def read(self, size: int) -> bytes:
        try:
            piece = self._source.read(size)
        except (OSError, HTTPException) as error:
            raise Trouble(f"the server broke off after {self._read} bytes: {error}") from None
        self._read += len(piece)
        if self._hash:
            self._hash.update(piece)
        if not piece and self._length is not None and self._read < self._length:
            raise Trouble(f"the server broke off after {self._read} of {self._length} bytes")
        return piece

    def finish(self) -> None:
        """Read what is left, and compare."""
        while self.read(PIECE):
            pass
        if self._hash and self._hash.hexdigest() != self._sum:
            raise Hopeless(f"what was downloaded has the checksum {self._hash.hexdigest()} and not {self._sum}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Leads to servers only, and credentials to none but the one that they are for."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        _check(newurl)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            for name in [*request.headers]:
                if name != "User-agent":
                    request.remove_header(name)
        return request


def _check(url: str) -> None:
    if urlsplit(url).scheme not in _SCHEMES:
        raise Hopeless(f"{url} is no address of a web server; use http:// or https://")


def download(job: Job) -> Counted:
    """What a web server has under an address."""
    _check(job.url)
    request = urllib.request.Request(job.url, headers={"User-Agent": "virtfleet-importer"})
    for line in (*job.headers, *_secret_headers()):
        name, colon, value = line.partition(":")
        if not colon:
            raise Hopeless("an extra header has no colon between its name and its value")
        request.add_header(name.strip(), value.strip())
    if authorization := _authorization():
        request.add_header("Authorization", authorization)
    trust = urllib.request.HTTPSHandler(context=_trust())
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.HTTPHandler(), trust, _Redirects(), urllib.request.HTTPErrorProcessor()):
        opener.add_handler(handler)
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    try:
        response: HTTPResponse = opener.open(request, timeout=_SILENCE)
    except urllib.error.HTTPError as error:
        raise Trouble(f"{job.url}: the server answers {error.code} {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise Trouble(f"{job.url}: {getattr(error, 'reason', error)}") from None
    length = response.headers.get("Content-Length", "")
    return Counted(response, int(length) if length.isdecimal() else None, job.checksum)


def _authorization() -> str:
    directory = Path(importing.CREDENTIALS)
    if not directory.is_dir():
        return ""
    parts = []
    for name in ("accessKeyId", "secretKey"):
        if not (directory / name).is_file():
            raise Trouble(f"the Secret of secretRef has no {name}")
        parts.append((directory / name).read_bytes().strip())
    return f"Basic {base64.b64encode(b':'.join(parts)).decode()}"


def _secret_headers() -> Iterator[str]:
    directories = sorted(Path(importing.HEADERS).iterdir()) if Path(importing.HEADERS).is_dir() else []
    for directory in directories:
        for file in sorted(directory.iterdir()):
            if not file.name.startswith(".."):
                yield file.read_text(errors="replace").strip()


def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    directory = Path(importing.AUTHORITIES)
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not file.name.startswith(".."):
            try:
                context.load_verify_locations(cadata=file.read_text(errors="replace"))
            except ssl.SSLError as error:
                raise Trouble(f"the ConfigMap of certConfigMap: {file.name} holds no certificate: {error}") from None
    return context
