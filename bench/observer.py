"""Objects seen through a watch: when each of them first was what somebody waits for, and whether it is still there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import orjson

from virtfleet.kube.client import Client
from virtfleet.kube.resource import Obj, Resource


def has_condition(obj: Obj, kind: str, status: str = "True") -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == status for c in conditions)


class Observed:
    """What a watch showed. `marks` are what an object can come to be, by name."""

    def __init__(self, deadline: float, marks: dict[str, Callable[[Obj], bool]]) -> None:
        self.seen: dict[str, dict[str, float]] = {mark: {} for mark in marks}
        self._deadline, self._marks = deadline, marks
        self._there: set[str] = set()
        self._changed = asyncio.Condition()

    async def follow(self, api: Client, resource: Resource, namespace: str, listening: asyncio.Event) -> None:
        async with api.watch(resource, namespace) as events:
            listening.set()
            async for event in events:
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    async with self._changed:
                        self._take(event.type, orjson.loads(event.object))
                        self._changed.notify_all()

    def _take(self, change: str, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        if change == "DELETED":
            self._there.discard(name)
            return
        self._there.add(name)
        for mark, holds in self._marks.items():
            if holds(obj):
                self.seen[mark].setdefault(name, time.monotonic())

    async def until(self, mark: str, names: Iterable[str]) -> list[float]:
        """When each of them came to be that."""
        wanted, seen = list(names), self.seen[mark]
        await self._wait(lambda: all(name in seen for name in wanted), f"{', '.join(wanted)} to be {mark}")
        return [seen[name] for name in wanted]

    async def until_gone(self, names: Iterable[str]) -> None:
        wanted = set(names)
        await self._wait(lambda: not self._there & wanted, f"{', '.join(sorted(wanted))} to go")

    async def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self._deadline), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise TimeoutError(f"waited {self._deadline:.0f} s for {what}") from None


@asynccontextmanager
async def observing(
    api: Client, resource: Resource, namespace: str, deadline: float, **marks: Callable[[Obj], bool]
) -> AsyncIterator[Observed]:
    observed, listening = Observed(deadline, marks), asyncio.Event()
    following = asyncio.create_task(observed.follow(api, resource, namespace, listening))
    try:
        await listening.wait()
        yield observed
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def percentile(values: Iterable[float], percent: int) -> float:
    """The least value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
