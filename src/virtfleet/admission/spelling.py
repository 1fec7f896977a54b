"""Fields that no view knows: most often a slip of the keyboard.

The API server drops such fields, and what its owner wanted silently does not happen. They are no reason to refuse an
object (it may come from a newer version), so `virtfleet validate` warns, and offers the field that was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_type_hints

import msgspec

from virtfleet.admission.sections import Section
from virtfleet.admission.shape import VIEWS, parts
from virtfleet.api.meta import ObjectMeta
from virtfleet.api.view import View


@cache
def _known(view: type[View]) -> Mapping[str, type[View] | None]:
    """Fields of a view, each with the view of what is inside."""
    hints = get_type_hints(view, include_extras=True)
    return {
        item.encode_name: next(
            (p for p in parts(hints[item.name]) if isinstance(p, type) and issubclass(p, View)), None
        )
        for item in msgspec.structs.fields(view)
    }


def unknown_fields(obj: Section) -> Iterator[str]:
    """A warning for each field that does not exist. The object must have the types of its kind."""
    yield from _unknown({key: value for key, value in obj.items() if key != "status"}, VIEWS[obj["kind"]], "")


def _unknown(value: Any, view: type[View], path: str) -> Iterator[str]:
    if view is ObjectMeta:  # Kubernetes' own, with fields that we never read
        return
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, view, f"{path}[{i}]")
        return
    known = _known(view)
    for name, child in value.items():
        at = f"{path}.{name}" if path else name
        if name not in known:
            meant = {field.lower(): field for field in known}
            close = get_close_matches(name.lower(), meant, n=1, cutoff=0.75)
            hint = f"; did you mean {meant[close[0]]}?" if close else ""
            yield f"{at} is not a field and has no effect{hint}"
        elif (inside := known[name]) is not None:
            yield from _unknown(child, inside, at)
