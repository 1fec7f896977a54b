"""Short commands of the machine (ip, nft, runc...), run without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class CommandError(Exception):
    """A command failed; the message is what it said."""

    def __init__(self, argv: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"{argv[0]}: {said.strip() or f'exit code {code}'}")
        self.code = code


async def run(*argv: str, feed: str | None = None) -> str:
    """What the command printed; raises CommandError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if feed is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate(None if feed is None else feed.encode())
    except asyncio.CancelledError:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        raise CommandError(argv, process.returncode, err.decode(errors="replace"))
    return out.decode(errors="replace")
