"""Frames of the command socket: a length of four bytes, then one MessagePack value.

Either side greets first (`Hello`). Then requests carry a number, a name and a body, and answers the number of their
request, so that several can be under way at once; an answer with `more` is followed by others.

A guest that has broken out of its hypervisor speaks for its launcher. So what a launcher says is short, and what it may
hold is bounded by the types of the messages: reading it costs a handler next to nothing, whatever it is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

# Most bytes of one frame. A VMI is at most 1.5 MiB, and what is known of emulators as much again; what a large guest
# tells of itself is some 100 KiB; a picture is that of a large screen.
REQUEST, ANSWER, PICTURE = 4 << 20, 512 << 10, 16 << 20
LONGEST_ERROR = 8 << 10
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
    error: Annotated[str, msgspec.Meta(max_length=LONGEST_ERROR)] = ""
    more: bool = False


_encoder = msgspec.msgpack.Encoder()


def encode(value: object, limit: int) -> bytes:
    """A frame."""
    body = _encoder.encode(value)
    if len(body) > limit:
        raise WireError(f"a message of {len(body)} bytes is too long for the command socket")
    return _LENGTH.pack(len(body)) + body


def body(value: object) -> msgspec.Raw:
    """The body of a request or answer."""
    return msgspec.Raw(_encoder.encode(value))


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    return _read(msgspec.msgpack.decode, data, kind)


def decode_json(data: bytes, kind: type[T]) -> T:
    """The same for a message that was left in a file."""
    return _read(msgspec.json.decode, data, kind)


def _read(decoder: Callable[..., T], data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return decoder(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from None


async def frame(reader: asyncio.StreamReader, limit: Callable[[], int]) -> bytes | None:
    """The next frame; None when the other side has closed. `limit` is asked when its length is known."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > limit():
            raise WireError(f"a message of {length} bytes, where {limit()} are the most that is taken")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def receive(reader: asyncio.StreamReader, kind: type[T], limit: int) -> T | None:
    """The next value; None when the other side has closed."""
    data = await frame(reader, lambda: limit)
    return None if data is None else decode(data, kind)
