"""Tasks with an owner: none ends by an error that nobody hears of.

What goes on in the background is begun with `start` or, where it must not end by a mistake, with `keep`: either logs
and counts an end that was not expected. What somebody waits for is begun with `first_of`, `all_of` or `held`: they get
its error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[Any, Any, T]
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds before work is begun again
_STEADY = 60.0  # seconds after which an error is a new one, and not the last one again

witnesses: list[Callable[[str], object]] = []
"""Told of each end that was not expected, by what the task was for; components count them."""

_going_on: set[asyncio.Task[Any]] = set()  # the event loop itself holds no task


def start(work: Work[T], name: str, *, expected: tuple[type[BaseException], ...] = ()) -> asyncio.Task[T]:
    """Work in the background. Errors of the `expected` kinds are an end like any other.

    `name` says what it is for; what follows a colon in it is for the log only.
    """
    task = held(work, name)
    _going_on.add(task)

    def ended(task: asyncio.Task[T]) -> None:
        _going_on.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, expected):
            _record(name, error, "it has ended")

    task.add_done_callback(ended)
    return task


def keep(work: Callable[[], Work[None]], name: str) -> asyncio.Task[None]:
    """Work in the background that is begun again, after a pause, when an error ends it."""
    return start(_kept(work, name), name)


def held(work: Work[T], name: str) -> asyncio.Task[T]:
    """Work that its owner waits for, and so learns of its error."""
    return asyncio.create_task(work, name=name)


class Owned:
    """Tasks that end with their owner; each is forgotten when it has ended by itself."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Task[None]) -> None:
        """Own a task that has been begun."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def discard(self, task: asyncio.Task[None]) -> None:
        """Let a task go on without an owner."""
        self._tasks.discard(task)

    def cancel(self) -> None:
        """Have all of them end."""
        for task in list(self._tasks):
            task.cancel()

    async def end(self) -> None:
        """End all of them, and wait until they have."""
        ending = list(self._tasks)
        self.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def first_of(*works: Work[T], forgiven: tuple[type[Exception], ...] = (OSError,)) -> list[T | None]:
    """Do all of it until the first is done; then the others are ended. The answer is what each came to.

    That a connection breaks is an end like any other. Other errors are raised.
    """
    tasks = [held(work, "one of several") for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, forgiven):
            raise end
    return [None if isinstance(end, BaseException) else end for end in ends]


async def all_of(*works: Work[T]) -> list[T]:
    """Do all of it at once. The first error is raised when all is done, so that nothing goes on behind a retry."""
    ends = await asyncio.gather(*works, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


async def _kept(work: Callable[[], Work[None]], name: str) -> None:
    clock = asyncio.get_running_loop().time
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        began = clock()
        try:
            return await work()
        except Exception as error:
            if clock() - began > _STEADY:
                backoff.reset()
            pause = backoff.next()
            _record(name, error, f"begun again in {pause:.1f} s")
        await asyncio.sleep(pause)


def _record(name: str, error: BaseException, consequence: str) -> None:
    for witness in witnesses:
        witness(name.partition(":")[0])
    logger.error("%s: %s: %s; %s", name, type(error).__name__, error, consequence, exc_info=error)
