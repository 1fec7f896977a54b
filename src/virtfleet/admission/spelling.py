"""Fields that do not exist are most often a slip of the keyboard: which one was meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import get_type_hints

import msgspec

from virtfleet.admission.shape import parts
from virtfleet.api.kinds import BY_NAME
from virtfleet.api.view import View

_STEP = re.compile(r"\[\d+\]")


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


def meant(kind: str, path: str) -> str:
    """The field that was probably meant with one that does not exist, `spec.domain.devices.disk`; "" for no idea."""
    *parents, name = _STEP.sub("", path).split(".")
    view: type[View] | None = BY_NAME[kind].view
    for parent in parents:
        view = _known(view).get(parent) if view else None
    fields = {field.lower(): field for field in _known(view)} if view else {}
    close = get_close_matches(name.lower(), fields, n=1, cutoff=0.75)
    return fields[close[0]] if close else ""
