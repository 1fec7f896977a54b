"""Files that a hypervisor's processes append to without an end, kept short.

A guest decides how much is written to its console, and has a hand in what QEMU complains of. What is full is moved into
a file beside it, one only, and begins anew: whoever appends goes on in the same file.
"""

from __future__ import annotations

import asyncio
import glob
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

MOST = 2 << 20
"""Bytes after which a file is full."""
_EVERY = 2.0  # seconds, in which a guest with a serial port writes about as much again
_PIECE = 1 << 20


async def keep_short(patterns: Iterable[str]) -> None:
    """Look after files of these names from now on."""
    while True:
        await asyncio.sleep(_EVERY)
        for path in (path for pattern in patterns for path in glob.iglob(pattern)):
            shorten(path)


def last_words(pattern: str, most: int = 2000) -> str:
    """The end of what is in such files."""
    words = []
    for path in glob.iglob(pattern):
        with suppress(OSError), open(_open(path, os.O_RDONLY), "rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode):
                file.seek(max(0, found.st_size - most))
                words.append(file.read(most).decode(errors="replace"))
    return "".join(words)[-most:]


def shorten(path: str) -> None:
    """Begin a file anew that is full. Its last part goes to `<path>.0`, in place of what was there."""
    try:
        log = _open(path, os.O_RDWR)
    except OSError:
        return  # it is gone, or no file
    try:
        found = os.fstat(log)
        # What a process that does not append leaves free at the beginning takes no space.
        if not stat.S_ISREG(found.st_mode) or found.st_blocks * 512 <= MOST:
            return
        with suppress(OSError):
            _keep(log, found, f"{path}.0")
        os.ftruncate(log, 0)
    finally:
        os.close(log)


def _open(path: str, how: int) -> int:
    """Who writes such files is the guest's: a link is not followed, and nothing waits for the other end of a pipe."""
    return os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _keep(log: int, found: os.stat_result, path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    kept = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(found.st_mode))
    try:
        place = max(0, found.st_size - MOST)
        while place < found.st_size and (piece := os.pread(log, min(_PIECE, found.st_size - place), place)):
            place += os.write(kept, piece)
    finally:
        os.close(kept)
