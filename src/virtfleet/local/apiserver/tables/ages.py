"""Ages as kubectl shows them: `45s`, `3m12s`, `5h`, `12d`."""

from __future__ import annotations

import time

from virtfleet.api import times

UNKNOWN = "<unknown>"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}  # seconds
# Below so many seconds, an age is shown in this unit, and with what is left in that one.
_DETAIL = (
    (120, "s", ""),
    (600, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
)


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
    large, small = next((units for below, *units in _DETAIL if total < below), ("y", ""))
    rest = total % _UNITS[large] // _UNITS[small] if small else 0
    return f"{total // _UNITS[large]}{large}" + (f"{rest}{small}" if rest else "")
