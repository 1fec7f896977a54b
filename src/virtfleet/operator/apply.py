"""From what is installed to what should be: the difference of two objects, as a JSON patch. Pure.

The server adds defaults to what it is given, and others may add labels or annotations, so an installed object is never
equal to the rendered one. It is right when it holds everything that is wanted, and was written for just that (the
`applied` annotation). Then nothing is written. That annotation also names the fields that were written, so that those
go that are no longer wanted, and what others added stays.
"""

from __future__ import annotations

from typing import Any

import orjson

from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.kube.resource import Obj
from virtfleet.operator.render import APPLIED, IDENTITY, fields

_AMOUNTS = ("requests", "limits")  # the server spells quantities in its own way


def covers(installed: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what is there beyond it is somebody else's or a default."""
    if isinstance(wanted, dict):
        if not isinstance(installed, dict):
            return not wanted and installed is None
        return all(
            covers(installed.get(key), value) or (key in _AMOUNTS and _same_amounts(installed.get(key), value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(installed, list):
            return not wanted and installed is None
        return len(installed) == len(wanted) and all(map(covers, installed, wanted))
    return bool(installed == wanted)


def _same_amounts(installed: Any, wanted: Any) -> bool:
    if not (isinstance(installed, dict) and isinstance(wanted, dict) and installed.keys() == wanted.keys()):
        return False
    try:
        return all(Quantity.parse(installed[name]) == Quantity.parse(amount) for name, amount in wanted.items())
    except QuantityError:
        return False


def difference(installed: Obj, wanted: Obj) -> list[dict[str, Any]]:
    """Operations that bring the installed object to the wanted one; none where it is right."""
    installed_notes = installed["metadata"].get("annotations") or {}
    as_before = installed_notes.get(APPLIED) == wanted["metadata"]["annotations"][APPLIED]
    operations: list[dict[str, Any]] = []
    for section, value in wanted.items():
        if section in IDENTITY:
            continue
        if not isinstance(value, dict) or not isinstance(installed.get(section), dict):
            if not as_before or not covers(installed.get(section), value):
                operations.append({"op": "add", "path": f"/{section}", "value": value})
            continue
        operations += [
            {"op": "add", "path": f"/{section}/{_escaped(key)}", "value": inner}
            for key, inner in value.items()
            if not covers(installed[section].get(key), inner)
            or (not as_before and installed[section].get(key) != inner)
        ]
    operations += [*_notes(installed, wanted, "labels"), *_notes(installed, wanted, "annotations")]
    return operations if as_before else [*operations, *_leftovers(installed, wanted, _record(installed_notes))]


def _notes(installed: Obj, wanted: Obj, field: str) -> list[dict[str, Any]]:
    have, want = installed["metadata"].get(field), wanted["metadata"].get(field) or {}
    if not have:
        return [{"op": "add", "path": f"/metadata/{field}", "value": want}] if want else []
    return [
        {"op": "add", "path": f"/metadata/{field}/{_escaped(key)}", "value": value}
        for key, value in want.items()
        if have.get(key) != value
    ]


def _leftovers(installed: Obj, wanted: Obj, written: dict[str, Any]) -> list[dict[str, Any]]:
    """What was written earlier and is wanted no more."""
    present, named = fields(installed), fields(wanted)
    operations = []
    for section, keys in written.items():
        if section in IDENTITY or section not in present:
            continue
        notes = section in ("labels", "annotations")
        if section not in named and not notes:
            operations.append({"op": "remove", "path": f"/{_escaped(section)}"})
        elif isinstance(keys, list):
            path = f"/metadata/{section}" if notes else f"/{_escaped(section)}"
            gone = (set(keys) & set(present[section])) - {*named.get(section, ()), APPLIED}
            operations += [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in sorted(gone)]
    return operations


def _record(notes: dict[str, str]) -> dict[str, Any]:
    """What the annotation says was written. Anybody can write to it, so it may be anything."""
    try:
        record = orjson.loads(notes.get(APPLIED, ""))
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(record, dict):
        return {}
    return {key: [k for k in keys if isinstance(k, str)] for key, keys in record.items() if isinstance(keys, list)}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
