"""Threads for calls that block, each with a limit.

A call that has not come back in its time is left to itself, and its thread replaced, so that the next call finds one.
How many may be lost like that is bounded; beyond it, calls wait for those that were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from virtfleet.launcher.failure import Failure

T = TypeVar("T")
_MOST_LOST = 8


class Threads:
    """So many threads at once; a call waits for its turn."""

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._pool = ThreadPoolExecutor(number, name)
        self._lost: set[Future[Any]] = set()

    async def run(self, call: Callable[[], T], limit: float) -> T:
        """What the call answers; Failure where it does not within `limit` seconds."""
        pool = self._pool
        future = pool.submit(call)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if future.cancelled():  # it had not begun
                raise Failure(f"libvirt or the guest was busy with other calls for {limit:.0f} s") from None
            self._lose(pool, future)
            raise Failure(f"libvirt did not answer within {limit:.0f} s") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _lose(self, pool: ThreadPoolExecutor, future: Future[Any]) -> None:
        self._lost.add(future)
        future.add_done_callback(self._lost.discard)
        if pool is self._pool and len(self._lost) <= _MOST_LOST:
            self._pool = ThreadPoolExecutor(self._number, self._name)
            pool.shutdown(wait=False)
