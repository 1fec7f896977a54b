"""How a running instance follows its VM's template: what a part has to say of it, and fields taken out of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Obj = dict[str, Any]
Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Following:
    """What a part makes of an instance whose VM was edited."""

    spec: Obj = field(default_factory=dict)
    """A merge patch of its spec."""
    pending: Mapping[str, str] = field(default_factory=dict)
    """Conditions of the instance that say what it waits for from then on, with their messages."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fields that were changed and need a restart, each with the reason."""


NOTHING: Final = Following()


def at(spec: Section, path: str) -> Any:
    """What a spec says at `domain.cpu.sockets`; None where it says nothing."""
    value: Any = spec
    for key in path.split("."):
        value = (value or {}).get(key)
    return value


def without(spec: Section, paths: Sequence[str]) -> Obj:
    """A spec without some of its fields, and without sections of which nothing is left."""
    left = dict(spec)
    for path in paths:
        key, _, rest = path.partition(".")
        inner = without(left.get(key) or {}, [rest]) if rest else {}
        if inner:
            left[key] = inner
        else:
            left.pop(key, None)
    return left


def settled(
    old: Section, new: Section, instance: Section, paths: Sequence[str], same: Callable[[Any, Any], bool]
) -> tuple[Obj, Obj]:
    """Two specs of a template, without fields that the instance has as the second one wants them.

    Of fields that it has otherwise, what it has counts, and not what it was started with.
    """
    done = [path for path in paths if same(at(new, path), at(instance, path))]
    before = without(old, done)
    for path in paths:
        if path not in done and (at(old, path), at(new, path)) != (None, None):
            before = _with(before, path, at(instance, path))
    return before, without(new, done)


def _with(spec: Section, path: str, value: Any) -> Obj:
    key, _, rest = path.partition(".")
    return {**spec, key: _with(spec.get(key) or {}, rest, value) if rest else value}


def replaced(old: Any, new: Any) -> Any:
    """What a merge patch says in a field to have another value there: a merge leaves what it does not name."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {key: replaced(old.get(key), new.get(key)) for key in old.keys() | new.keys()}
