"""Ages as kubectl shows them: `45s`, `3m12s`, `5h`, `12d`."""

from __future__ import annotations

import time

from virtfleet.api import times

UNKNOWN = "<unknown>"


def since(timestamp: str | None) -> str:
    """The time that has passed since a timestamp."""
    if not timestamp:
        return UNKNOWN
    try:
        return human(time.time() - times.seconds(timestamp))
    except ValueError:
        return "<invalid>"


def human(seconds: float) -> str:
    """A duration with as much detail as its length deserves."""
    if seconds < -1:
        return "<invalid>"
    total = max(int(seconds), 0)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
