"""Moments as objects carry them: RFC 3339, in UTC; and durations, as Go writes them: `24h`, `1h30m`, `90s`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_LAST: Final = 253402300799  # the end of the year 9999
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|m|s|ms|us|µs|ns))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def timestamp(moment: float | None = None) -> str:
    """A moment to the second, now where none is given. Later than what can be written is the last that can."""
    return _written(int(min(time.time() if moment is None else moment, _LAST)))


@lru_cache(4096)  # the same seconds come again and again
def _written(moment: int) -> str:
    return time.strftime(FORMAT, time.gmtime(moment))


def precise_now() -> str:
    """Now to the microsecond, as leases say it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(text: str) -> float:
    """The moment that a text names. Raises ValueError where it names none."""
    return datetime.fromisoformat(text).timestamp()


def duration(text: str) -> float | None:
    """A duration in seconds; None where the text is none."""
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
