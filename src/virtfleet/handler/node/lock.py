"""The lock that makes one handler the only one that acts on a node.

DaemonSets cannot promise that a node never has two handlers for a moment, least of all when it changes its pool. The
kernel can: it lets one process hold the lock on a file of the node, and takes it back however that process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_RETRY = 0.05


class NodeLock:
    """`held` from the end of `acquire` on, until `release` or the end of the process."""

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    async def acquire(self) -> None:
        """Wait until the lock is ours, and say in the log for whom we wait."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        waiting_for: str | None = None
        while not self._try():
            if (holder := self.holder()) != waiting_for:
                waiting_for = holder
                logger.info("another handler serves this node (%s); waiting for it to end", holder or "unknown")
            await asyncio.sleep(_RETRY)
        logger.info("this handler serves the node from now on")

    def holder(self) -> str:
        """Who wrote its name into the lock last."""
        with suppress(OSError):
            return self._path.read_text()
        return ""

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try(self) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A file that was removed meanwhile can be locked, but locks nobody out.
            if os.fstat(file).st_ino != os.stat(self._path).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.pwrite(file, self._holder.encode(), 0)
        self._file = file
        return True
