"""The wire format of lists and watches, split without decoding the objects in it.

msgspec.Raw finds where each object begins and ends and leaves it as bytes; whoever wants an object decodes what it
needs of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import orjson

from virtfleet.kube.api import Page, WatchEvent
from virtfleet.kube.errors import ApiError

# No object is as large as this; a stream without line ends must not eat the memory.
LONGEST_EVENT = 32 * 2**20


class _ListMeta(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_list = msgspec.json.Decoder(_List)
_event = msgspec.json.Decoder(_Event)


def split_list(body: bytes) -> Page:
    try:
        decoded = _list.decode(body)
    except msgspec.MsgspecError as error:
        raise ApiError("InternalError", f"the server's answer is not a list: {error}") from error
    return Page([bytes(item) for item in decoded.items or ()], decoded.metadata.version, decoded.metadata.more)


async def split_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent]:
    """The events of a watch, one per line. A line cut short by the end of the stream never happened."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_EVENT:
            raise ApiError("InternalError", f"watch: an event of more than {LONGEST_EVENT} bytes")
        for line in lines:
            if not line.strip():
                continue
            try:
                event = _event.decode(line)
                if event.type == "ERROR":
                    raise ApiError.from_status(orjson.loads(bytes(event.object)), 500)
            except (msgspec.MsgspecError, orjson.JSONDecodeError) as error:
                raise ApiError("InternalError", f"watch: not an event: {line[:80]!r}: {error}") from error
            yield WatchEvent(event.type, bytes(event.object))
