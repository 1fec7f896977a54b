"""Frames of the command socket: a length of four bytes, then one MessagePack value.

Either side greets first (`Hello`). Then requests carry a number, a name and a body, and answers the number of their
request, so that several can be under way at once; an answer with `more` is followed by others.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TypeVar

import msgspec

LIMIT = 16 << 20  # of one frame: a VMI is at most 1.5 MiB, a picture of a large screen some more
_LENGTH = struct.Struct(">I")

T = TypeVar("T")


class WireError(Exception):
    """The other side does not speak this protocol, or broke off."""


class Request(msgspec.Struct):
    """A request on its way."""

    id: int
    name: str
    body: msgspec.Raw = msgspec.Raw(b"\x80")


class Answer(msgspec.Struct, omit_defaults=True):
    """An answer on its way. An error is a sentence for people."""

    id: int
    body: msgspec.Raw = msgspec.Raw(b"\x80")
    error: str = ""
    more: bool = False


_encoder = msgspec.msgpack.Encoder()


def encode(value: object) -> bytes:
    """A frame."""
    body = _encoder.encode(value)
    if len(body) > LIMIT:
        raise WireError(f"a message of {len(body)} bytes is too long for the command socket")
    return _LENGTH.pack(len(body)) + body


def body(value: object) -> msgspec.Raw:
    """The body of a request or answer."""
    return msgspec.Raw(_encoder.encode(value))


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from None


async def receive(reader: asyncio.StreamReader, kind: type[T]) -> T | None:
    """The next value; None when the other side has closed."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > LIMIT:
            raise WireError(f"a message of {length} bytes: the other side does not speak this protocol")
        return decode(await reader.readexactly(length), kind)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
