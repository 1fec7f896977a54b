"""Containers' log files in the format of the container runtime interface: time, stream, P or F, text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from virtfleet.api import times

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One entry. A long line of the container's comes as several, all but the last of them partial."""

    stamp: bytes
    partial: bool
    text: bytes

    def moment(self) -> float:
        return times.seconds(self.stamp.decode())

    def render(self, timestamps: bool) -> bytes:
        end = b"" if self.partial else b"\n"
        return (self.stamp + b" " + self.text if timestamps else self.text) + end


def parse(raw: bytes) -> Line | None:
    """None for what is no entry, such as the torn line of a crash."""
    parts = raw.split(b" ", 3)
    if len(parts) != 4 or parts[2] not in (b"P", b"F"):
        return None
    return Line(parts[0], parts[2] == b"P", parts[3])


def last_lines(path: Path, count: int) -> tuple[list[bytes], int]:
    """The last `count` raw entries and the size of the file, read from the end: a large file costs no more."""
    try:
        with open(path, "rb") as file:
            size = position = file.seek(0, os.SEEK_END)
            tail = b""
            while position and tail.count(b"\n") <= count:
                step = min(_CHUNK, position)
                position = file.seek(position - step)
                tail = file.read(step) + tail
    except FileNotFoundError:  # the container has said nothing yet
        return [], 0
    return tail.splitlines()[-count:] if count else [], size
