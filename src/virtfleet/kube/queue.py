"""A queue of keys for workers that make the world fit the object behind a key.

A key stands for "look at this object again", so adding it twice is the same as adding it once. A key that is added
while a worker has it runs once more afterwards, never at the same time. Keys wait in the order of their arrival; one
that fails waits out its own growing pause elsewhere and takes nobody's turn.
"""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Counter, Gauge, Histogram

# KubeVirt's names, and the buckets that dashboards for Kubernetes components expect.
_BUCKETS = [10.0**exponent for exponent in range(-8, 4)]
DEPTH = Gauge("kubevirt_workqueue_depth", "Current depth of workqueue", ["name"])
ADDS = Counter("kubevirt_workqueue_adds", "Total number of adds handled by workqueue", ["name"])
RETRIES = Counter("kubevirt_workqueue_retries", "Total number of retries handled by workqueue", ["name"])
LATENCY = Histogram(
    "kubevirt_workqueue_queue_duration_seconds",
    "How long an item stays in workqueue before being requested",
    ["name"],
    buckets=_BUCKETS,
)
WORK = Histogram(
    "kubevirt_workqueue_work_duration_seconds",
    "How long processing an item from workqueue takes",
    ["name"],
    buckets=_BUCKETS,
)


class QueueClosed(Exception):
    """The queue is closed and empty."""


class Queue:
    """`first` and `most` are the pauses in seconds after the first failure of a key and at most."""

    def __init__(self, name: str, *, first: float = 0.01, most: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._ready: asyncio.Queue[str | None] = asyncio.Queue()  # None at the end of a closed queue
        self._wanted: dict[str, float] = {}  # key -> since when it waits for a worker
        self._working: dict[str, float] = {}  # key -> since when a worker has it
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._closed = False
        self._depth = DEPTH.labels(name)
        self._adds = ADDS.labels(name)
        self._retries = RETRIES.labels(name)
        self._latency = LATENCY.labels(name)
        self._work = WORK.labels(name)

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, key: str) -> None:
        if self._closed or key in self._wanted:
            return
        self._wanted[key] = time.monotonic()
        self._adds.inc()
        if key not in self._working:
            self._hand_out(key)

    def add_after(self, key: str, delay: float) -> None:
        """Add the key when `delay` seconds have passed. Of several such delays the shortest counts."""
        if self._closed:
            return
        if delay <= 0:
            return self.add(key)
        loop = asyncio.get_running_loop()
        if waiting := self._later.get(key):
            if waiting.when() <= loop.time() + delay:
                return
            waiting.cancel()
        self._later[key] = loop.call_later(delay, self._due, key)

    def retry(self, key: str) -> float:
        """Add the key after the pause that its failures in a row have earned; the answer is that pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._retries.inc()
        delay = min(self._first * 2.0 ** min(failures, 60), self._most)
        self.add_after(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """The key has succeeded: its next failure is the first one again."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key. It is this worker's until `done(key)`. Raises QueueClosed when there will be none."""
        key = await self._ready.get()
        if key is None:
            self._ready.put_nowait(None)  # for the next worker
            raise QueueClosed
        now = time.monotonic()
        self._depth.dec()
        self._latency.observe(now - self._wanted.pop(key))
        self._working[key] = now
        return key

    def done(self, key: str) -> None:
        self._work.observe(time.monotonic() - self._working.pop(key))
        if key in self._wanted:
            self._hand_out(key)

    def close(self) -> None:
        """Take nothing more and drop what waits for a time; what is ready is still handed out."""
        if not self._closed:
            self._closed = True
            for handle in self._later.values():
                handle.cancel()
            self._later.clear()
            self._ready.put_nowait(None)

    def _hand_out(self, key: str) -> None:
        self._depth.inc()
        self._ready.put_nowait(key)

    def _due(self, key: str) -> None:
        del self._later[key]
        self.add(key)
