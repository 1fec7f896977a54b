"""Frames of SPDY/3.1, as far as `kubectl port-forward` has need of them. Pure: bytes in, frames out, and back.

Nothing else speaks it any more, and no library does. What comes in is somebody else's: the sizes of frames and of
header blocks, packed and unpacked, are bounded, and whatever is not as it should be is a `SpdyError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

DATA, SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY, HEADERS = 0, 1, 2, 3, 6, 7, 8
PROTOCOL_ERROR, REFUSED_STREAM = 1, 3  # why a stream is reset
LARGEST_DATA, LARGEST_CONTROL = 1 << 20, 1 << 14  # bytes in a frame
LARGEST_BLOCK, MOST_HEADERS = 1 << 14, 32  # of a header block, unpacked
_VERSION, _CONTROL, _FIN, _ID = 3, 1 << 31, 1, (1 << 31) - 1
_BEFORE_BLOCK = {SYN_STREAM: 10, SYN_REPLY: 4, HEADERS: 4}  # bytes before a header block
_FIXED = {RST_STREAM: 8, PING: 4, GOAWAY: 8}  # bytes of frames that have always as many

# The text that both sides' compressors start from, word by word as the protocol has it.
_NAMES = (
    "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age|allow"
    "|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length"
    "|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match"
    "|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma"
    "|proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade"
    "|user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie"
    "|keep-alive|origin"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(struct.pack(">I", len(name)) + name.encode() for name in _NAMES.split("|")) + _TAIL.encode()


class SpdyError(Exception):
    """The other side does not keep to the protocol; the connection cannot go on."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`number` is the stream's; of a ping, its own. `fin`: the sender says no more on this stream."""

    kind: int
    number: int = 0
    fin: bool = False
    data: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Decoder:
    """What one side has sent, put together to frames."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._unpacker = zlib.decompressobj(zdict=DICTIONARY)  # one for all blocks of a connection

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete by now."""
        self._waiting += data
        while len(self._waiting) >= 8:
            first, second = struct.unpack_from(">II", self._waiting)
            length, most = second & 0xFFFFFF, LARGEST_CONTROL if first & _CONTROL else LARGEST_DATA
            if length > most:
                raise SpdyError(f"a frame of {length} bytes; {most} are the most")
            if len(self._waiting) < 8 + length:
                return
            body = bytes(self._waiting[8 : 8 + length])
            del self._waiting[: 8 + length]
            yield self._frame(first, second >> 24, body)

    def _frame(self, first: int, flags: int, body: bytes) -> Frame:
        fin = bool(flags & _FIN)
        if not first & _CONTROL:
            return Frame(DATA, _stream(first), fin, body)
        kind, version = first & 0xFFFF, first >> 16 & 0x7FFF
        if version != _VERSION:
            raise SpdyError(f"version {version}; this is version {_VERSION}")
        if len(body) != _FIXED.get(kind, len(body)) or len(body) < _BEFORE_BLOCK.get(kind, 0):
            raise SpdyError(f"a frame of kind {kind} with {len(body)} bytes")
        if kind in _BEFORE_BLOCK:  # also what nobody reads is unpacked: later blocks build on it
            headers = self._headers(body[_BEFORE_BLOCK[kind] :])
            return Frame(kind, _stream(*struct.unpack_from(">I", body)), fin, headers=headers)
        number = struct.unpack_from(">I", body)[0] if kind in _FIXED else 0
        return Frame(kind, _stream(number) if kind == RST_STREAM else number)

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            block = self._unpacker.decompress(packed, LARGEST_BLOCK)
        except zlib.error as error:
            raise SpdyError(f"a header block that cannot be unpacked: {error}") from None
        if len(block) >= LARGEST_BLOCK or self._unpacker.eof:
            raise SpdyError("a header block that is too large, or the last one")
        return _unfolded(block)


def _stream(number: int) -> int:
    if not 0 < number <= _ID:
        raise SpdyError(f"stream {number}")
    return number


def _unfolded(block: bytes) -> dict[str, str]:
    position = 0

    def take(count: int) -> bytes:
        nonlocal position
        position += count
        if position > len(block):
            raise SpdyError("a header block that is cut off")
        return block[position - count : position]

    def number() -> int:
        return int.from_bytes(take(4))

    if (count := number()) > MOST_HEADERS:
        raise SpdyError(f"{count} headers; {MOST_HEADERS} are the most")
    headers: dict[str, str] = {}
    for _ in range(count):
        name = take(number()).decode("latin-1").lower()
        if name in headers:
            raise SpdyError(f"the header {name!r} twice")
        headers[name] = take(number()).decode("latin-1")
    if position != len(block):
        raise SpdyError("a header block with more than its headers")
    return headers


class Encoder:
    """Frames as they are sent. Blocks of headers build on each other: one of these for each connection."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(zdict=DICTIONARY)

    def opening(self, kind: int, stream: int, headers: dict[str, str]) -> bytes:
        """SYN_STREAM and SYN_REPLY."""
        block = struct.pack(">I", len(headers))
        for text in (text for header in headers.items() for text in header):
            block += struct.pack(">I", len(text)) + text.encode("latin-1")
        packed = self._packer.compress(block) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return control(kind, struct.pack(">I", stream) + bytes(_BEFORE_BLOCK[kind] - 4) + packed)


def data(stream: int, payload: bytes, *, fin: bool = False) -> bytes:
    return struct.pack(">II", stream, (_FIN if fin else 0) << 24 | len(payload)) + payload


def control(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | _VERSION << 16 | kind, len(body)) + body


def reset(stream: int, why: int) -> bytes:
    return control(RST_STREAM, struct.pack(">II", stream, why))


def ping(number: int) -> bytes:
    return control(PING, struct.pack(">I", number))


def go_away(last: int, why: int) -> bytes:
    return control(GOAWAY, struct.pack(">II", last, why))
