"""Fields that do not exist are most often a slip of the keyboard: which one was meant."""

from __future__ import annotations

import re
from difflib import get_close_matches

from virtfleet.api.kinds import BY_NAME
from virtfleet.api.view import View, fields

_STEP = re.compile(r"\[\d+\]")


def meant(kind: str, path: str) -> str:
    """The field that was probably meant with one that does not exist, `spec.domain.devices.disk`; "" for no idea."""
    *parents, name = _STEP.sub("", path).split(".")
    view: type[View] | None = BY_NAME[kind].view
    for parent in parents:
        known = fields(view).get(parent) if view else None
        view = known.inside if known else None
    names = {field.lower(): field for field in fields(view)} if view else {}
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""
