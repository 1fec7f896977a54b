"""The order in which handlers change owners of nodes: first the old owner lets go, then the new one takes over. Pure.

A change of pools can move nodes in both directions between two DaemonSets at once. So every DaemonSet whose placement
changes is first narrowed to the nodes that it has now *and* shall keep, and DaemonSets that are no longer wanted go.
Once the DaemonSet controller has seen all of that, they get the placement that they should have, and new ones are made.
None of it begins before the next handler is proven on every node that a pool is to lose; until then DaemonSets keep
their placement. Nodes of the primary handler do not change hands this way but one by one (`keeping`).
All of it follows from the objects: an operator that is killed in between goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.operator.digest import digest
from virtfleet.operator.handlers import PLACEMENT
from virtfleet.operator.render import stamped
from virtfleet.pools.placement import NOTHING
from virtfleet.pools.terms import MAX_TERMS

GOAL = "virtfleet.io/placement-goal"
"""Annotation of a narrowed DaemonSet: the placement that it is on its way to."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_Terms = list[dict[str, Any]]


@dataclass(slots=True)
class Step:
    """What to do now: objects to make or change, DaemonSets to delete. `done` when there is nothing after it."""

    apply: list[Obj] = field(default_factory=list)
    delete: list[Obj] = field(default_factory=list)
    done: bool = False


def step(installed: Mapping[str, Obj], wanted: Mapping[str, Obj]) -> Step:
    """The next step from the installed handler DaemonSets to the wanted ones, both by name."""
    leaving = [ds for name, ds in installed.items() if name not in wanted]
    moving = {
        name: want
        for name, want in wanted.items()
        if name in installed and placement(installed[name]) != placement(want)
    }
    result = Step(delete=[ds for ds in leaving if not _ending(ds)])
    narrowing = [
        narrowed(installed[name], want)
        for name, want in moving.items()
        if _goal(installed[name]) != digest(placement(want))
    ]
    # Whatever was narrowed, in this call or an earlier one, must have been acted on before anything gets wider.
    widening = moving.keys() | (wanted.keys() - installed.keys())
    waiting = widening and any(not _observed(ds) for ds in installed.values() if not _ending(ds))
    if narrowing or result.delete or waiting:
        result.apply = [*narrowing, *(w for name, w in wanted.items() if name in installed and name not in moving)]
        return result
    ending = {name for name, ds in installed.items() if _ending(ds)}  # to be made anew when it is gone
    result.apply = [want for name, want in wanted.items() if name not in ending]
    result.done = not ending & set(wanted)
    return result


def pending(installed: Mapping[str, Obj], wanted: Mapping[str, Obj]) -> bool:
    """Whether a DaemonSet is to have other nodes than it has now."""
    return any(name not in wanted or placement(ds) != placement(wanted[name]) for name, ds in installed.items())


def held(installed: Obj, wanted: Obj) -> Obj:
    """The wanted DaemonSet on the nodes that the installed one has."""
    return _placed(wanted, placement(installed), wanted["metadata"]["annotations"])


def placement(daemon_set: Obj) -> dict[str, Any]:
    spec = daemon_set["spec"]["template"]["spec"]
    return {key: spec[key] for key in PLACEMENT if spec.get(key)}


def narrowed(installed: Obj, wanted: Obj) -> Obj:
    """The wanted DaemonSet on those nodes only that the installed one admits as well."""
    annotations = {**wanted["metadata"]["annotations"], GOAL: digest(placement(wanted))}
    return _placed(wanted, _both(placement(installed), placement(wanted)), annotations)


def _placed(wanted: Obj, where: dict[str, Any], annotations: dict[str, str]) -> Obj:
    spec, metadata = wanted["spec"], wanted["metadata"]
    pod = {key: value for key, value in spec["template"]["spec"].items() if key not in PLACEMENT}
    return stamped(
        {
            **wanted,
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**spec, "template": {**spec["template"], "spec": {**pod, **where}}},
        }
    )


def _both(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A placement that admits what both admit."""
    old_selector, new_selector = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    affinity = new.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    terms = _conjunction(_terms(old), _terms(new))
    if any(new_selector.get(key, value) != value for key, value in old_selector.items()):
        terms = []
    if terms is not None:
        terms = terms or [{"matchExpressions": NOTHING}]
        node_affinity = {**node_affinity, _REQUIRED: {"nodeSelectorTerms": terms}}
        affinity = {**affinity, "nodeAffinity": node_affinity}
    return {**new, "nodeSelector": {**old_selector, **new_selector}, "affinity": affinity}


def _terms(of: dict[str, Any]) -> _Terms | None:
    """The terms of a placement's required node affinity; None where it has none."""
    required = ((of.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return None if required is None else list(required.get("nodeSelectorTerms") or ())


def _conjunction(old: _Terms | None, new: _Terms | None) -> _Terms | None:
    if old is None or new is None:
        return new if old is None else old
    if len(old) * len(new) <= MAX_TERMS:
        return _joined(old, new)
    # More terms than a handler may have: better fewer nodes for a moment than a Pod that the API server refuses.
    return [term for term in new if term in old]


def _joined(old: _Terms, new: _Terms) -> _Terms:
    terms: _Terms = []
    for first, second in product(old, new):
        term = {}
        for part in ("matchExpressions", "matchFields"):
            known = list(first.get(part) or ())
            known += [condition for condition in second.get(part) or () if condition not in known]
            if known:
                term[part] = known
        if term not in terms and not _contradictory(term):
            terms.append(term)
    return terms


def _contradictory(term: dict[str, Any]) -> bool:
    """Whether no value of some label can meet the term, as far as In and NotIn tell."""
    allowed: dict[str, set[str]] = {}
    for condition in term.get("matchExpressions") or ():
        if condition["operator"] == "In":
            values = set(condition["values"])
            allowed[condition["key"]] = allowed.get(condition["key"], values) & values
    for condition in term.get("matchExpressions") or ():
        if condition["operator"] == "NotIn" and condition["key"] in allowed:
            allowed[condition["key"]] -= set(condition["values"])
    return any(not values for values in allowed.values())


def _goal(daemon_set: Obj) -> str:
    return str((daemon_set["metadata"].get("annotations") or {}).get(GOAL, ""))


def _ending(daemon_set: Obj) -> bool:
    return daemon_set["metadata"].get("deletionTimestamp") is not None


def _observed(daemon_set: Obj) -> bool:
    """Whether the DaemonSet controller has acted on the object as it is now."""
    seen = (daemon_set.get("status") or {}).get("observedGeneration") or 0
    return bool(seen >= (daemon_set["metadata"].get("generation") or 0))
