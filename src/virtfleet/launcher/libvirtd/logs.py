"""What libvirt says, as lines of the launcher's own log; and files that a hypervisor's processes append to, kept short.

A guest decides how much is written to its console, and has a hand in what QEMU complains of. What is full is moved into
a file beside it, as the last of three, and begins anew: whoever appends goes on in the same file.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from virtfleet.work import tasks

MOST = 2 << 20
"""Bytes after which a file is full."""
_EVERY = 2.0  # seconds, in which a guest with a serial port writes about as much again
_PIECE = 1 << 20
_LONGEST_LINE = 1 << 16
_LAST_LINES = 1.0  # seconds for what a process that has ended said last
_LIBVIRT = logging.getLogger("libvirt")
_LIBVIRT.setLevel(logging.DEBUG)  # libvirt's own filters decide
_SAID = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+0000): \d+: (debug|info|warning|error) : (?:(\w+:\d+) : )?(.*)"
)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@asynccontextmanager
async def passed_on() -> AsyncIterator[int]:
    """A file for libvirt to write to; what comes is logged here, until nobody writes any more or the block ends."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=_LONGEST_LINE)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading))
    logging_it = tasks.start(_log(stream), "libvirt's log")
    try:
        yield writing
    finally:
        os.close(writing)
        with suppress(TimeoutError):  # a process that it left behind may keep it open
            async with asyncio.timeout(_LAST_LINES):
                await logging_it
        pipe.close()


async def _log(stream: asyncio.StreamReader) -> None:
    rest = b""
    while piece := await stream.read(_LONGEST_LINE):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            _LIBVIRT.handle(record(line.decode(errors="replace")))
    if rest:
        _LIBVIRT.handle(record(rest.decode(errors="replace")))


def record(line: str) -> logging.LogRecord:
    """A line of libvirt's for the launcher's log, with its own time, level and place where it has some."""
    said = _SAID.fullmatch(line)
    when, level, place, words = said.groups("") if said else ("", "info", "", line)
    made = {"levelno": _LEVELS[level], "levelname": level.upper(), "msg": words, "funcName": place}
    if when:
        made["created"] = datetime.strptime(when, "%Y-%m-%d %H:%M:%S.%f%z").timestamp()
    return logging.makeLogRecord({**made, "subcomponent": "libvirt"})


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
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                file.seek(max(0, status.st_size - most))
                words.append(file.read(most).decode(errors="replace"))
    return "".join(words)[-most:]


def shorten(path: str) -> None:
    """Begin a file anew that is full. Its last part goes to `<path>.0`, what was there to `.1`, and that to `.2`."""
    try:
        log = _open(path, os.O_RDWR)
    except OSError:
        return  # it is gone, or no file
    try:
        status = os.fstat(log)
        # What a process that does not append leaves free at the beginning takes no space.
        if not stat.S_ISREG(status.st_mode) or status.st_blocks * 512 <= MOST:
            return
        with suppress(OSError):
            _keep(log, status, path)
        os.ftruncate(log, 0)
    finally:
        os.close(log)


def _open(path: str, how: int) -> int:
    """Who writes such files is the guest's: a link is not followed, and nothing waits for the other end of a pipe."""
    return os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _keep(log: int, status: os.stat_result, path: str) -> None:
    for older in (2, 1):
        with suppress(FileNotFoundError):
            os.rename(f"{path}.{older - 1}", f"{path}.{older}")
    kept = os.open(f"{path}.0", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(status.st_mode))
    try:
        place = max(0, status.st_size - MOST)
        while place < status.st_size and (piece := os.pread(log, min(_PIECE, status.st_size - place), place)):
            place += os.write(kept, piece)
    finally:
        os.close(kept)
