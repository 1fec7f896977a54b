"""libvirt's messages between two daemons, as far as the launcher must know them: what an answer answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from virtfleet.protocol.wire import WireError

_HEAD = struct.Struct(">7I")  # length with the head, program, version, procedure, kind, serial, status
_DOMAINS = 0x20008086  # the program whose procedures are about domains
_ANSWER = 1
TO_PREPARE = 303
"""The procedure by which a target prepares itself; memory goes next."""


class Answers:
    """Bytes that come from the other daemon, in any pieces."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # bytes of the present message

    def split(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """The same bytes, and with each piece the procedure that a message answers which begins there, else 0."""
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                yield piece, 0
                continue
            missing = _HEAD.size - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == _HEAD.size:
                length, program, _, procedure, kind, _, _ = _HEAD.unpack(self._head)
                if length < _HEAD.size:
                    raise WireError(f"a message of libvirt's cannot have {length} bytes")
                self._left = length - _HEAD.size
                yield self._head, procedure if (program, kind) == (_DOMAINS, _ANSWER) else 0
                self._head = b""
