"""Signs of life to the supervisor, from the event loop: a process that is frozen or hangs gives none."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from virtfleet.local.supervisor import ALIVE_FD

SILENCE = 20.0  # seconds that a process may give none; half of those after which a node counts as lost
_PAUSE = 2.0


async def giving(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and give signs of life meanwhile if a supervisor listens."""
    descriptor = os.environ.pop(ALIVE_FD, None)
    beating = asyncio.create_task(_beat(int(descriptor))) if descriptor else None
    try:
        await work
    finally:
        if beating:
            beating.cancel()


async def _beat(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as supervisor:
        supervisor.setblocking(False)
        supervisor.set_inheritable(False)
        while True:
            with suppress(OSError):  # one that does not listen now may do so later
                supervisor.send(b".")
            await asyncio.sleep(_PAUSE)
