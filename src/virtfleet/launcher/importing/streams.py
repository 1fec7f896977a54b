"""Images as they come in: read in pieces, unpacked on the way, never whole in memory, and known by their first bytes.

Images are strangers'. What a format can do beyond holding a disk (lie on another file, keep its data in one, be
encrypted) is refused before any program that knows the format opens the image.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import ssl
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from virtfleet.protocol import importing
from virtfleet.protocol.importing import Job

PIECE: Final = 1 << 20
_SILENCE: Final = 60.0  # seconds in which a server has to say something
_MEMORY: Final = 80 << 20  # that unpacking may take; what `xz -9` asks for is 65 MiB
_ALGORITHMS: Final = ("md5", "sha1", "sha256", "sha512")
_SCHEMES: Final = ("http", "https")

HEAD: Final = 512
"""Bytes by which an image is known."""
RAW, QCOW2 = "raw", "qcow2"
_QCOW2: Final = b"QFI\xfb"
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_OTHERS: Final = {
    b"KDMV": "VMDK",
    b"# Disk DescriptorFile": "VMDK",
    b"conectix": "VHD",
    b"vhdxfile": "VHDX",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"LUKS\xba\xbe": "LUKS",
    b"QED\x00": "QED",
}
_VDI, _VDI_AT = b"\x7f\x10\xda\xbe", 64
_V3_HEAD: Final = ">4sIQIIQI"
_INCOMPATIBLE_AT: Final = 72
# Features that say nothing of another file: not closed, found broken, another compression, extended entries.
_HARMLESS: Final = 0b11011


class Trouble(Exception):
    """What may go better the next time."""


class Hopeless(Exception):
    """What can never become the disk that is asked for; the message is for its owner."""


class Readable(Protocol):
    """Something to read from; nothing at all is the end."""

    def read(self, size: int, /) -> bytes: ...


class Head:
    """What comes in pieces, as a stream whose beginning can be looked at before it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def peek(self, size: int) -> bytes:
        while len(self._left) < size and (piece := next(self._pieces, b"")):
            self._left += piece
        return self._left[:size]

    def read(self, size: int) -> bytes:
        self._left = self._left or next(self._pieces, b"")
        piece, self._left = self._left[:size], self._left[size:]
        return piece


def unpacked(source: Readable) -> Head:
    """A stream without the packing that it may have; packing within packing stays."""
    head = Head(iter(partial(source.read, PIECE), b""))
    packing = compression(head.peek(HEAD))
    return Head(_unpacked(head, packing)) if packing else head


def _unpacked(source: Readable, packing: str) -> Iterator[bytes]:
    """Several packed streams that follow each other are one, as their tools have it."""
    waiting = source.read(PIECE)
    while waiting:
        xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY) if packing == "xz" else None
        unpack: Any = xz or zlib.decompressobj(wbits=31)
        while not unpack.eof:
            if not waiting and getattr(unpack, "needs_input", True) and not (waiting := source.read(PIECE)):
                raise Trouble("the packed image ends too early")
            try:
                piece = unpack.decompress(waiting, PIECE)
            except (zlib.error, lzma.LZMAError) as error:
                raise Hopeless(f"the image cannot be unpacked: {error}") from None
            waiting = getattr(unpack, "unconsumed_tail", b"")  # lzma keeps by itself what it has not used yet
            if piece:
                yield piece
        waiting = (unpack.unused_data or source.read(PIECE)).lstrip(b"\0")  # archives may be padded


def compression(head: bytes) -> str:
    """How a stream is packed: gzip, xz or not at all."""
    return "gzip" if head.startswith(_GZIP) else "xz" if head.startswith(_XZ) else ""


def kind(head: bytes) -> str:
    """The format of an image that is not packed."""
    if head.startswith(_QCOW2):
        return QCOW2
    known = next((name for start, name in _OTHERS.items() if head.startswith(start)), "")
    if other := "VDI" if head.startswith(_VDI, _VDI_AT) else known:
        raise Hopeless(
            f"the image is of format {other}; convert it to qcow2 or raw first, packed with gzip or xz at most"
        )
    return RAW


def disk_size(head: bytes) -> int:
    """The size of the disk in a qcow2 image, if it stands alone."""
    try:
        _, version, backing, _, _, size, encryption = struct.unpack_from(_V3_HEAD, head)
        features = struct.unpack_from(">Q", head, _INCOMPATIBLE_AT)[0] if version > 2 else 0
    except struct.error:
        raise Hopeless("the image ends within its own header; replace it") from None
    if version not in (2, 3):
        raise Hopeless(f"the image is of version {version} of qcow2; convert it to version 3")
    if backing or features & ~_HARMLESS:
        raise Hopeless(
            "the image refers to another file or needs what is not supported; convert it with qemu-img first"
        )
    if encryption:
        raise Hopeless("the image is encrypted; convert it with qemu-img first")
    return int(size)


def check_size(size: int, most: int) -> None:
    if size > most:
        raise Hopeless(f"the disk has {size} bytes and the claim has room for {most}; ask for more storage")


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


def _secret_headers() -> list[str]:
    return [text.strip() for secret in sorted(Path(importing.HEADERS).glob("*")) for _, text in _files(secret)]


def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name, text in _files(Path(importing.AUTHORITIES)):
        try:
            context.load_verify_locations(cadata=text)
        except ssl.SSLError as error:
            raise Trouble(f"the ConfigMap of certConfigMap: {name} holds no certificate: {error}") from None
    return context


def _files(mounted: Path) -> Iterator[tuple[str, str]]:
    """Of a Secret or a ConfigMap, where there is one, without what is the kubelet's own."""
    for file in sorted(mounted.glob("*")):
        if not file.name.startswith(".."):
            yield file.name, file.read_text(errors="replace")
