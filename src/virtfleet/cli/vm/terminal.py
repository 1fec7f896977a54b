"""The user's terminal as one end of a stream of bytes: as typed, unbuffered, and given back as it was."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TextIO

ESCAPE = b"\x1d"  # ^]
_CHUNK = 4096


@contextmanager
def raw() -> Iterator[None]:
    """Every key as it is typed, while in here. Standard input that is no terminal stays as it is."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def typed() -> AsyncIterator[bytes]:
    """What is typed, up to ^]; nothing is typed any more where the input ends: b"" says so, and comes last.

    The next is read when the last has been dealt with.
    """
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    there = asyncio.Event()
    while True:
        try:
            # The descriptor is shared with whoever started us, so it has to stay blocking.
            loop.add_reader(descriptor, there.set)
        except PermissionError:  # a file: nobody has to wait for it
            there.set()
        try:
            await there.wait()
        finally:
            loop.remove_reader(descriptor)
        there.clear()
        data, escape, _ = os.read(descriptor, _CHUNK).partition(ESCAPE)
        if data or not escape:
            yield data
        if escape or not data:
            return


def show(data: bytes, out: TextIO | None = None) -> None:
    stream = (out or sys.stdout).buffer
    stream.write(data)
    stream.flush()
