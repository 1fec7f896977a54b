"""Status conditions: lists with one entry per type, whose times tell when something changed and not when we looked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from virtfleet.api import times

Condition = dict[str, Any]


def seconds(text: str | None) -> float:
    """A time as objects carry it, as a number; 0 for one that is not set."""
    return times.seconds(text) if text else 0.0


def find(conditions: Iterable[Condition] | None, kind: str) -> Condition | None:
    return next((c for c in conditions or () if c.get("type") == kind), None)


def put(conditions: Iterable[Condition] | None, condition: Condition, now: float) -> list[Condition]:
    """The list with this condition; its lastTransitionTime moves only when its status does."""
    kind = condition["type"]
    old = find(conditions, kind)
    same = old is not None and old.get("status") == condition["status"]
    changed = (old or {}).get("lastTransitionTime") if same else times.timestamp(now)
    new = {**condition, "lastTransitionTime": changed}
    rest = list(conditions or ())
    if old is None:
        return [*rest, new]
    return [new if c is old else c for c in rest]


def drop(conditions: Iterable[Condition] | None, kind: str) -> list[Condition]:
    return [c for c in conditions or () if c.get("type") != kind]
