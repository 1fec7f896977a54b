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
    keeper = pool.daemon_set if pool else PRIMARY
    kept: Term = {names.SERVED_BY: (True, frozenset((keeper,)))}
    owned = [{**term, names.SERVED_BY: ABSENT} for term in owned_terms(pools, pool)]
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


def owned_terms(pools: Sequence[Pool], pool: Pool | None) -> list[Term]:
    """Terms for the nodes that a handler owns by their labels; none where earlier pools take every node of a pool."""
    earlier = pools[: pools.index(pool)] if pool else pools
    return _terms([(p.node_selector, False) for p in earlier], pool)


def launcher_terms(pools: Sequence[Pool], pool: Pool | None) -> list[Term]:
    """Terms for the nodes that pools leave to the launcher pods of VMIs that matched `pool` (None: no pool)."""
    return _terms([(p.node_selector, p == pool or not p.exclusive) for p in pools], pool)


def _terms(rules: Sequence[Rule], pool: Pool | None) -> list[Term]:
    """What the rules admit of the nodes that a pool selects; None: of all nodes."""
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
