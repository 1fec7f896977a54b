"""Where handlers and launcher pods may go.

Exactly one handler DaemonSet admits each node: the affinity of the primary refuses what any pool owns, the affinity of
a pool what an earlier pool owns. A launcher pod goes to the nodes of its VMI's pool, and stays off nodes that an
exclusive pool keeps for its own VMIs.

All functions build new objects; the affinity they are given is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtfleet.pools.model import Pool
from virtfleet.pools.terms import MAX_TERMS, Term, TooManyTermsError, admitted, expressions

OS_LABEL = "kubernetes.io/os"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

# Conditions that no node meets. Kubernetes has no shorter way to say so inside a term.
NOTHING = [{"key": OS_LABEL, "operator": "Exists"}, {"key": OS_LABEL, "operator": "DoesNotExist"}]


def handler_placement(
    pools: Sequence[Pool], pool: Pool | None, workloads: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """nodeSelector, affinity and tolerations of the handler DaemonSet of `pool` (None: the primary one).

    `workloads` is `spec.workloads.nodePlacement` of the KubeVirt object; it holds for every handler.
    """
    workloads = workloads or {}
    node_selector = {OS_LABEL: "linux", **(workloads.get("nodeSelector") or {})}
    ours = owned_terms(pools, pool)
    if pool is not None:
        # Where the administrator's own placement asks for another value of a key, no node can have both. The pool's
        # wish then goes into the affinity, which admits nothing, instead of silently replacing the other one.
        contradicted = {k: v for k, v in pool.node_selector.items() if node_selector.get(k, v) != v}
        node_selector |= {k: v for k, v in pool.node_selector.items() if k not in contradicted}
        ours = [{**term, **{k: (True, frozenset((v,))) for k, v in contradicted.items()}} for term in ours]
    affinity = restrict_affinity(workloads.get("affinity"), ours)
    required = ((affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    if len(required) > MAX_TERMS:
        raise TooManyTermsError
    placement = {
        "nodeSelector": dict(sorted(node_selector.items())),
        "affinity": affinity,
        "tolerations": list(workloads.get("tolerations") or ()),
    }
    return {field: value for field, value in placement.items() if value}


def owned_terms(pools: Sequence[Pool], pool: Pool | None) -> list[Term]:
    """Terms for the nodes that a handler owns; for a pool, among those that its nodeSelector already selects.

    An empty list means that earlier pools take every node of this one.
    """
    if pool is None:
        return admitted([(p.node_selector, False) for p in pools], otherwise=True)
    earlier = pools[: pools.index(pool)]
    return admitted([(p.node_selector, False) for p in earlier], otherwise=True, given=pool.node_selector)


def launcher_terms(pools: Sequence[Pool], pool: Pool | None) -> list[Term]:
    """Terms for the nodes that pools leave to the launcher pods of VMIs that matched `pool` (None: no pool)."""
    rules = [(p.node_selector, p == pool or not p.exclusive) for p in pools]
    given = pool.node_selector if pool else {}
    fixed: Term = {key: (True, frozenset((value,))) for key, value in given.items()}
    return [{**fixed, **term} for term in admitted(rules, otherwise=True, given=given)]


def restrict_affinity(affinity: Mapping[str, Any] | None, ours: Sequence[Term]) -> dict[str, Any]:
    """An affinity that admits the nodes which both the given one and one of our terms admit.

    Each of the given terms is combined with each of ours. An empty term admits nothing, so nothing is added to it.
    """
    affinity = dict(affinity or {})
    if {} in ours:  # one that admits every node
        return affinity
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = node_affinity.get(_REQUIRED)
    added = [expressions(term) for term in ours] or [NOTHING]
    if required is None:
        terms = [{"matchExpressions": more} for more in added]
    else:
        terms = [
            {**theirs, "matchExpressions": [*(theirs.get("matchExpressions") or ()), *more]}
            for theirs in required.get("nodeSelectorTerms") or ()
            if theirs.get("matchExpressions") or theirs.get("matchFields")
            for more in added
        ]
        if not terms:  # it admits no node as it is
            return affinity
    node_affinity[_REQUIRED] = {**(required or {}), "nodeSelectorTerms": terms}
    affinity["nodeAffinity"] = node_affinity
    return affinity
