"""How fast anything here may go: growing pauses after failures, and token buckets for rates.

Pauses are jittered so that a thousand clients which lost their server at the same moment do not come back at the same
moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable


class Backoff:
    """Pauses that double from `first` to `most` seconds, each shortened at random by up to half."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._pause = first

    def next(self) -> float:
        pause = self._pause
        self._pause = min(pause * 2, self._most)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._pause = self._first


class TokenBucket:
    """`burst` at once, then `rate` per second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    def take(self) -> bool:
        """Take a token if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
