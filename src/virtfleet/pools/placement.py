"""Where handlers and launcher pods may go.

Exactly one handler DaemonSet admits each node: the one that the node's label `served-by` names, whatever its other
labels are; on a node without that label the affinity of the primary refuses what any pool owns, the affinity of a pool
what an earlier pool owns. A launcher pod goes to the nodes of its VMI's pool, and stays off nodes that an exclusive
pool keeps for its own VMIs.

All functions build new objects; the affinity they are given is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtfleet.api import names
from virtfleet.pools.model import Pool
from virtfleet.pools.terms import ABSENT, MAX_TERMS, Rule, Term, TooManyTermsError, admitted, expressions

OS_LABEL = "kubernetes.io/os"
PRIMARY = "primary"
"""Value of `served-by` on nodes of the primary handler. Those of a pool have the name of its DaemonSet."""
_REQUIRED, _MATCHES = "requiredDuringSchedulingIgnoredDuringExecution", ("matchExpressions", "matchFields")
# Conditions that no node meets. Kubernetes has no shorter way to say so inside a term.
_NOWHERE = {"matchExpressions": [{"key": OS_LABEL, "operator": each} for each in ("Exists", "DoesNotExist")]}


def handler_placement(
    pools: Sequence[Pool], pool: Pool | None, workloads: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """nodeSelector, affinity and tolerations of the handler DaemonSet of `pool` (None: the primary one).

    `workloads` is `spec.workloads.nodePlacement` of the KubeVirt object; it holds for every handler.
    """
    workloads = workloads or {}
    keeper = pool.daemon_set if pool else PRIMARY
    kept: Term = {names.SERVED_BY: (True, frozenset((keeper,)))}
    # By their labels a handler owns nodes that no earlier pool takes.
    earlier = pools[: pools.index(pool)] if pool else pools
    owned = [{**term, names.SERVED_BY: ABSENT} for term in _terms([(p.node_selector, False) for p in earlier], pool)]
    affinity = restrict_affinity(workloads.get("affinity"), [kept, *owned])
    required = ((affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    if len(required) > MAX_TERMS:
        raise TooManyTermsError
    placement = {
        "nodeSelector": dict(sorted({OS_LABEL: "linux", **(workloads.get("nodeSelector") or {})}.items())),
        "affinity": affinity,
        "tolerations": list(workloads.get("tolerations") or ()),
    }
    return {field: value for field, value in placement.items() if value}


def launcher_terms(pools: Sequence[Pool], pool: Pool | None) -> list[Term]:
    """Terms for the nodes that pools leave to the launcher pods of VMIs that matched `pool` (None: no pool)."""
    return _terms([(p.node_selector, p == pool or not p.exclusive) for p in pools], pool)


def _terms(rules: Sequence[Rule], pool: Pool | None) -> list[Term]:
    """What the rules admit of the nodes that a pool selects; None: of all nodes."""
    given = pool.node_selector if pool else {}
    fixed: Term = {key: (True, frozenset((value,))) for key, value in given.items()}
    return [{**fixed, **term} for term in admitted([*rules, ({}, True)], given)]


def restrict_affinity(affinity: Mapping[str, Any] | None, ours: Sequence[Term]) -> dict[str, Any]:
    """An affinity that admits the nodes which both the given one and one of our terms admit.

    Terms of ours that are empty admit every node.
    """
    if {} in ours:
        return dict(affinity or {})
    return near(affinity or {}, [{"matchExpressions": expressions(term)} for term in ours] or [_NOWHERE])


def near(affinity: Mapping[str, Any], terms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An affinity that also keeps to nodes which one of these node selector terms admits.

    Each of the given terms is combined with each of these. An empty term admits nothing, so nothing is added to it.
    """
    node = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED)
    if required is None:
        both = list(terms)
    else:
        both = [
            {kind: [*(one.get(kind) or ()), *(other.get(kind) or ())] for kind in _MATCHES if kind in {**one, **other}}
            for one in required.get("nodeSelectorTerms") or ()
            if any(map(one.get, _MATCHES))
            for other in terms
        ]
        if not both:  # it admits no node as it is
            return dict(affinity)
    return {**affinity, "nodeAffinity": {**node, _REQUIRED: {**(required or {}), "nodeSelectorTerms": both}}}


def apart(affinity: Mapping[str, Any], term: Mapping[str, Any]) -> dict[str, Any]:
    """An affinity that also keeps off the Pods that a term is about."""
    anti = affinity.get("podAntiAffinity") or {}
    return {**affinity, "podAntiAffinity": {**anti, _REQUIRED: [*(anti.get(_REQUIRED) or ()), term]}}
