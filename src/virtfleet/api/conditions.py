"""Conditions of an object: a list with one entry per type, whose times tell when something changed, not who looked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from virtfleet.api.times import timestamp

Condition = dict[str, Any]


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((c for c in conditions if c.get("type") == kind), None)


def holds(conditions: Iterable[Condition], kind: str, status: str = "True", reason: str = "") -> bool:
    """Whether the condition is there with this status, and with this reason if one is given."""
    condition = find(conditions, kind)
    return condition is not None and condition.get("status") == status and reason in ("", condition.get("reason"))


def put(
    conditions: list[Condition], kind: str, status: str, now: float, *, reason: str = "", message: str = ""
) -> list[Condition]:
    """The list with this condition. It is the same list where it says so already."""
    old = find(conditions, kind)
    if old and (status, reason, message) == (old.get("status"), old.get("reason") or "", old.get("message") or ""):
        return conditions
    since = old.get("lastTransitionTime") if old and old.get("status") == status else timestamp(now)
    new = {"type": kind, "status": status, "lastTransitionTime": since}
    new |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    return [new if c is old else c for c in conditions] if old else [*conditions, new]


def drop(conditions: list[Condition], kind: str) -> list[Condition]:
    return [c for c in conditions if c.get("type") != kind]


def state(conditions: list[Condition], kind: str, now: float, why: tuple[str, str] | None) -> list[Condition]:
    """The list with this condition, true for a reason and in words; without it where there is none."""
    return put(conditions, kind, "True", now, reason=why[0], message=why[1]) if why else drop(conditions, kind)
