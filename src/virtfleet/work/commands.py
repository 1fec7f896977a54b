"""Commands of the machine (ip, nft, qemu-img, runc...): run without blocking the event loop, and not for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO

LIMIT = 60.0  # seconds that most of them have
_FAREWELL = 5.0  # seconds for the kernel to end what was killed; what waits for a disk may take longer


class CommandError(Exception):
    """A command failed; the message is what it said."""

    def __init__(self, argv: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"{os.path.basename(argv[0])}: {said.strip() or f'exit code {code}'}")
        self.code = code


def python(module: str) -> tuple[str, ...]:
    """A module as a process of its own, with what this one sees of the machine's Python."""
    return (sys.executable, *(["-S"] if sys.flags.no_site else []), "-m", module)


async def run(*argv: str, feed: str | bytes | None = None, limit: float = LIMIT, accept: Sequence[int] = (0,)) -> str:
    """What the command printed. It gets `feed`, and has `limit` seconds; `accept` are the exit codes of success."""
    stdin = asyncio.subprocess.DEVNULL if feed is None else asyncio.subprocess.PIPE
    async with started(*argv, limit=limit, stdin=stdin) as process:
        out, err = await process.communicate(feed.encode() if isinstance(feed, str) else feed)
    if process.returncode not in accept:
        raise CommandError(argv, process.returncode or 0, (err or out).decode(errors="replace"))
    return out.decode(errors="replace")


@asynccontextmanager
async def started(*argv: str, limit: float, stdin: IO[bytes] | int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command for as long as the context lasts, which has `limit` seconds; what still runs at its end is killed."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except FileNotFoundError:
        raise CommandError(argv, 127, "there is no such command here") from None
    try:
        async with asyncio.timeout(limit):
            yield process
    except TimeoutError:
        raise CommandError(argv, -signal.SIGKILL, f"not done within {limit:.0f} s, and killed") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await process.wait()
