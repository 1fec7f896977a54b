"""From what is installed to what should be: the difference of two objects, as a JSON patch. Pure.

The server adds defaults to what it is given, and others may add labels or annotations, so an installed object is never
equal to the rendered one. It is right when it holds everything that is wanted, and was written for just that (the
`applied` annotation). Then nothing is written. That annotation also names the fields that were written, so that those
go that are no longer wanted, and what others added stays. Of kinds of our own nothing that others add stays, for they
have no defaults; and nothing belongs to another object, with which it would go.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import orjson

from virtfleet.api import kinds
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.kube.resource import Obj
from virtfleet.operator.render import APPLIED, IDENTITY, NOTES, fields

WHOLE = (kinds.TYPES[1].kind, kinds.PREFERENCES[1].kind)
_AMOUNTS = ("requests", "limits")  # the server spells quantities in its own way


def covers(installed: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what is there beyond it is somebody else's or a default."""
    if installed == wanted:  # schemas are large, and compared at every look
        return True
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
    return False


def _same_amounts(installed: Any, wanted: Any) -> bool:
    if not (isinstance(installed, dict) and isinstance(wanted, dict) and installed.keys() == wanted.keys()):
        return False
    try:
        return all(Quantity.parse(installed[name]) == Quantity.parse(amount) for name, amount in wanted.items())
    except QuantityError:
        return False


def difference(installed: Obj, wanted: Obj) -> list[dict[str, Any]]:
    """Operations that bring the installed object to the wanted one; none where it is right."""
    notes = installed["metadata"].get("annotations") or {}
    as_before = notes.get(APPLIED) == wanted["metadata"]["annotations"][APPLIED]
    whole = wanted["kind"] in WHOLE
    right = operator.eq if whole else covers
    there, operations = _sections(installed), []
    for path, want in _sections(wanted).items():
        have = there.get(path)
        if isinstance(want, dict) and isinstance(have, dict):
            operations += [
                {"op": "add", "path": f"{path}/{_escaped(key)}", "value": inner}
                for key, inner in want.items()
                if not right(have.get(key), inner) or (not as_before and have.get(key) != inner)
            ]
        elif not as_before or not right(have, want):
            operations.append({"op": "add", "path": path, "value": want})
    if installed["metadata"].get("ownerReferences"):
        operations.append({"op": "remove", "path": "/metadata/ownerReferences"})
    if as_before and not whole:
        return operations
    return [*operations, *_leftovers(installed, wanted, fields(installed) if whole else _record(notes))]


class Comparer:
    """Remembers what was right: at each look nearly everything is as it was at the one before."""

    def __init__(self) -> None:
        self._right: dict[tuple[str, str], tuple[str, str, str]] = {}  # kind and name -> what was compared

    def difference(self, installed: Obj, wanted: Obj) -> list[dict[str, Any]]:
        meta = installed["metadata"]
        key = (wanted["kind"], f"{meta.get('namespace', '')}/{meta['name']}")
        compared = (meta["uid"], meta["resourceVersion"], wanted["metadata"]["annotations"][APPLIED])
        if self._right.get(key) == compared:
            return []
        operations = difference(installed, wanted)
        if not operations:
            self._right[key] = compared
        return operations


def _sections(obj: Obj) -> dict[str, Any]:
    """What the operator writes of an object, by the path of each part."""
    sections = {f"/{_escaped(key)}": value for key, value in obj.items() if key not in IDENTITY}
    notes = {f"/metadata/{field}": obj["metadata"].get(field) for field in NOTES}
    return sections | {path: value for path, value in notes.items() if value}


def _leftovers(installed: Obj, wanted: Obj, written: dict[str, Any]) -> list[dict[str, Any]]:
    """What was written earlier and is wanted no more."""
    present, named = fields(installed), fields(wanted)
    operations = []
    for section, keys in written.items():
        if section not in present:
            continue
        path = f"/metadata/{section}" if section in NOTES else f"/{_escaped(section)}"
        if section not in named:
            operations.append({"op": "remove", "path": path})
        else:
            gone = (set(keys) & set(present[section])) - {*named[section], APPLIED}
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


class CannotUndo(Exception):
    """The installation stays as it is; the message says what to do."""


def check_stored(installed: Iterable[Obj], wanted: Iterable[Obj]) -> None:
    """Raise where the definitions that are installed hold objects which those that are wanted could not serve.

    Going back to an older version is an update like any other, as long as that can read what is stored. Else nothing at
    all is touched: half of an installation of each version would be worse than either.
    """
    served = {d["metadata"]["name"]: {v["name"] for v in d["spec"]["versions"]} for d in wanted}
    lost = []
    for definition in installed:
        name = definition["metadata"]["name"]
        stored = (definition.get("status") or {}).get("storedVersions") or ()
        if name in served and (unknown := sorted(set(stored) - served[name])):
            lost.append(f"{name} ({', '.join(unknown)})")
    if lost:
        raise CannotUndo(
            f"objects are stored in versions that this operator does not know: {'; '.join(sorted(lost))}; nothing was "
            "changed. Install the newer operator again, write those objects in an older version, and take the version "
            "off status.storedVersions of their definitions before you go back"
        )
