"""What this version cannot take over from the one that was here before. Pure.

Going back to an older version is an update like any other, as long as the older one can read what is stored. It cannot
where objects are stored in a version of their kind that it does not have. Then nothing at all is touched: half of an
installation of each version would be worse than either.
"""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.kube.resource import Obj


class CannotUndo(Exception):
    """The installation stays as it is; the message says what to do."""


def check(installed: Iterable[Obj], wanted: Iterable[Obj]) -> None:
    """Raise where the definitions that are installed hold objects which those that are wanted could not serve."""
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
