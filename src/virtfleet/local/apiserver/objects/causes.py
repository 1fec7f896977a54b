"""Faults of objects in Kubernetes' words: one function per kind of fault.

kubectl prints these messages to people and scripts match on them, so their form is part of the interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an object, as it goes into a Status' details.causes."""

    field: str  # spec.containers[0].image
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueDuplicate, ...
    message: str  # as Kubernetes words it: `Required value: ...`, `Invalid value: "x": ...`


def field_path(parts: Iterable[str | int]) -> str:
    """`spec.containers[0].image`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def quoted(value: Any) -> str:
    """A value as messages show it: JSON, which is what Go's %q and its encoder give for all that occurs here."""
    return orjson.dumps(value).decode()


def required(field: str, detail: str = "") -> Cause:
    """A field that is absent or empty."""
    return Cause(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str, reason: str = "FieldValueInvalid") -> Cause:
    """A value that is not right."""
    return Cause(field, reason, f"Invalid value: {quoted(value)}: {detail}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """A value that is not one of a few."""
    detail = "supported values: " + ", ".join(quoted(str(v)) for v in supported)
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}: {detail}")


def duplicate(field: str, value: Any) -> Cause:
    """A value that is there twice."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")


def not_found(field: str, value: Any) -> Cause:
    """A reference to nothing."""
    return Cause(field, "FieldValueNotFound", f"Not found: {quoted(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """A field that may not be there, or not change."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def too_long(field: str, limit: int) -> Cause:
    """A value that is too long."""
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} byte{_s(limit)}")


def too_many(field: str, actual: int, limit: int) -> Cause:
    """A list or map that is too large."""
    return Cause(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} item{_s(limit)}")


def _s(number: int) -> str:
    return "" if number == 1 else "s"
