"""The loop that every controller is: keys of changed objects in, one idempotent function per key.

`reconcile(key)` reads caches, compares what should be with what is, and writes the difference. It is called again after
every change of an object that the controller follows, after the number of seconds that it returns, and after a pause
when it raised. Nothing is remembered between two calls, so that a restart loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ApiError, is_conflict
from virtfleet.kube.queue import Queue, QueueClosed

logger = logging.getLogger(__name__)

T = TypeVar("T")

Reconcile = Callable[[str], Awaitable[float | None]]


class Controller:
    """`caches` are those that `reconcile` reads; nothing is reconciled before all of them are in sync."""

    def __init__(self, name: str, reconcile: Reconcile, caches: Sequence[Cache[Any]] = (), *, workers: int = 1) -> None:
        self.name = name
        self.queue = Queue(name)
        self._reconcile = reconcile
        self._caches = [*caches]
        self._workers = workers

    def follow(self, cache: Cache[T], keys: Callable[[T], Iterable[str]] | None = None) -> None:
        """Reconcile on every change in `cache`: the key of the object, or those that `keys` names for it.

        `keys` is asked about the object before and after a change, so that of two owners both get to know of a move.
        """

        def own(key: str, _old: T | None, _new: T | None) -> None:
            self.queue.add(key)

        def mapped(_key: str, old: T | None, new: T | None) -> None:
            assert keys is not None
            for value in (old, new):
                if value is not None:
                    for key in keys(value):
                        self.queue.add(key)

        self._caches.append(cache)
        cache.on_change(own if keys is None else mapped)

    async def run(self) -> None:
        """Work until cancelled. A controller runs once: leadership that was lost ends the process."""
        try:
            for cache in self._caches:
                await cache.synced.wait()
            logger.info("controller %s: caches are in sync, starting %d workers", self.name, self._workers)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._once(key)
            finally:
                self.queue.done(key)

    async def _once(self, key: str) -> None:
        try:
            again = await self._reconcile(key)
        except Exception as error:
            pause = self.queue.retry(key)
            if is_conflict(error):  # somebody else wrote first; the cache is about to show it
                logger.debug("controller %s: %s: %s", self.name, key, error)
            else:
                # The server's refusals explain themselves; anything else is a bug and needs its trace.
                trace = None if isinstance(error, ApiError) else error
                logger.error("controller %s: %s: %s; again in %.2f s", self.name, key, error, pause, exc_info=trace)
            return
        self.queue.forget(key)
        if again is not None:
            self.queue.add_after(key, again)
