"""What deleting an object means: preconditions, grace, finalizers, and the choice between marking and removing.

Pure decisions; operations.py acts on them. An object goes for good only when its grace is over and nobody's finalizer
is left on it. How dependents are treated is asked for through finalizers too (`orphan`, `foregroundDeletion`), which
the garbage collector acts on and removes.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from virtfleet.api.times import seconds, timestamp
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import causes, refusals

_BY_PROPAGATION = {"Orphan": "orphan", "Foreground": "foregroundDeletion", "Background": None}
_NAMESPACES = "/namespaces"
_IMMORTAL = ("default", "kube-system", "kube-public")


class Outcome(enum.Enum):
    """What became of a deletion."""

    UNCHANGED = enum.auto()  # deletion is under way already
    MARKED = enum.auto()  # grace or finalizers hold it
    REMOVED = enum.auto()


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete, and when not to."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None


def parse_options(body: Obj, query: dict[str, str]) -> tuple[DeleteOptions, bool]:
    """From a DeleteOptions object and the query's parameters, which serve where there is no body; whether to delete in
    earnest is the second."""
    given: dict[str, Any] = dict(body)
    if not given:
        given = {key: query[key] for key in ("propagationPolicy",) if key in query}
        if "gracePeriodSeconds" in query:
            given["gracePeriodSeconds"] = _number("gracePeriodSeconds", query["gracePeriodSeconds"])
    wrong = []
    grace, propagation = given.get("gracePeriodSeconds"), given.get("propagationPolicy")
    only_if = given.get("preconditions") or {}
    dry_run = given.get("dryRun") or ([query["dryRun"]] if query.get("dryRun") else [])
    for field, is_right, what in (
        ("kind", given.get("kind") in (None, "", "DeleteOptions"), "DeleteOptions"),
        ("gracePeriodSeconds", grace is None or type(grace) is int, "an integer"),
        ("propagationPolicy", propagation is None or isinstance(propagation, str), "a string"),
        ("dryRun", isinstance(dry_run, list), "a list of strings"),
        ("preconditions", isinstance(only_if, dict), "an object"),
    ):
        if not is_right:
            raise refusals.bad_request(f"DeleteOptions: {field} must be {what}")
    if grace is not None and grace < 0:
        grace = 1  # as Kubernetes does: a negative period means "as soon as possible, but do ask"
    if propagation is not None and propagation not in _BY_PROPAGATION:
        wrong.append(causes.unsupported("propagationPolicy", propagation, (*_BY_PROPAGATION, "nil")))
    if propagation is not None and given.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        wrong.append(causes.invalid("propagationPolicy", propagation, why))
    if dry_run not in ([], ["All"]):
        wrong.append(causes.unsupported("dryRun", dry_run[0] if len(dry_run) == 1 else dry_run, ("All",)))
    if wrong:
        raise refusals.invalid_options("DeleteOptions", wrong)
    return DeleteOptions(grace, propagation, only_if.get("uid"), only_if.get("resourceVersion")), not dry_run


def _number(name: str, text: str) -> int:
    if len(text) < 20 and text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        return int(text)
    raise refusals.bad_request(f"{name} must be an integer, not {causes.quoted(text[:40])}")


def check_allowed(kind: Kind, obj: Obj, options: DeleteOptions) -> None:
    """Refuse a deletion whose preconditions do not hold, and that of a namespace that the cluster needs."""
    meta = obj["metadata"]
    if kind.storage == _NAMESPACES and meta["name"] in _IMMORTAL:
        raise refusals.not_allowed(kind.resource, meta["name"], "this namespace may not be deleted")
    for field, wanted, present in (
        ("UID", options.uid, meta["uid"]),
        ("ResourceVersion", options.resource_version, meta["resourceVersion"]),
    ):
        if wanted and wanted != present:
            raise refusals.precondition_failed(kind.resource, meta["name"], field, wanted, present)


def begin(kind: Kind, obj: Obj, options: DeleteOptions) -> Outcome:
    """Take one step of deletion: change `obj` to what should be stored, or find that it should go now."""
    meta = obj["metadata"]
    changed = False
    finalizers = _for_propagation(meta.get("finalizers") or [], options.propagation)
    if "deletionTimestamp" in meta:
        grace = meta.get("deletionGracePeriodSeconds") or 0
        if options.grace is not None and options.grace < grace:
            # A grace beyond all times was cut off; no deletion began before its object did.
            began = max(seconds(meta["deletionTimestamp"]) - grace, seconds(meta["creationTimestamp"]))
            grace, changed = options.grace, True
            meta["deletionTimestamp"] = timestamp(began + grace)
    else:
        given = kind.rules.grace(obj, options.grace)
        if given is None and not finalizers and kind.storage != _NAMESPACES:
            return Outcome.REMOVED  # as it is, without a mark
        grace, changed = given or 0, True
        meta["deletionTimestamp"] = timestamp(time.time() + grace)
        if "generation" in meta:
            meta["generation"] += 1
        if kind.storage == _NAMESPACES:
            obj.setdefault("status", {})["phase"] = "Terminating"
    meta["deletionGracePeriodSeconds"] = grace
    if finalizers != (meta.get("finalizers") or []):
        meta["finalizers"] = finalizers
        changed = True
    if complete(kind, obj):
        return Outcome.REMOVED
    return Outcome.MARKED if changed else Outcome.UNCHANGED


def complete(kind: Kind, obj: Obj) -> bool:
    """Whether nothing holds an object any more whose deletion has begun."""
    meta = obj["metadata"]
    held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    if kind.storage == _NAMESPACES:
        held = held or obj.get("spec", {}).get("finalizers")
    return "deletionTimestamp" in meta and not held


def _for_propagation(finalizers: Sequence[str], propagation: str | None) -> list[str]:
    if propagation is None:
        return list(finalizers)
    wanted = _BY_PROPAGATION[propagation]
    kept = [name for name in finalizers if name not in _BY_PROPAGATION.values() or name == wanted]
    return kept if wanted is None or wanted in kept else [*kept, wanted]
