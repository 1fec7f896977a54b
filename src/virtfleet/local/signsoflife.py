"""Signs of life to the supervisor, from the event loop: a process that is frozen or hangs gives none.

One that cannot go on says why with its last one: where the disk is the reason, nobody would find it in a log.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from virtfleet.local.supervisor import ALIVE_FD, LAST_WORDS
from virtfleet.work import tasks

SILENCE = 20.0  # seconds that a process may give none; half of those after which a node counts as lost
_PAUSE = 2.0
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


async def giving(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and give signs of life meanwhile if a supervisor listens."""
    descriptor = os.environ.pop(ALIVE_FD, None)
    if not descriptor:
        await work
        return
    with socket.socket(fileno=int(descriptor)) as supervisor:
        supervisor.setblocking(False)
        supervisor.set_inheritable(False)
        beating = tasks.start(_beat(supervisor), "signs of life")
        try:
            await work
        except Exception as error:
            _send(supervisor, LAST_WORDS + _cause(error).encode())
            raise
        finally:
            beating.cancel()


async def _beat(supervisor: socket.socket) -> None:
    while True:
        _send(supervisor, b".")
        await asyncio.sleep(_PAUSE)


def _send(supervisor: socket.socket, sign: bytes) -> None:
    with suppress(OSError):  # one that does not listen now may do so later
        supervisor.send(sign)


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    advice = ". Check the free space and the health of the disk" if getattr(error, "errno", 0) in _OF_DISKS else ""
    return " ".join(str(error).split())[:1000] + advice
