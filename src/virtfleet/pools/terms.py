"""Decision lists over node labels, written as Kubernetes node selector terms.

Who serves a node is a decision list: ask the pools in turn, the first whose nodeSelector the node's labels contain
decides. Kubernetes knows only ORed terms of ANDed conditions. `admitted` turns the one into the other exactly, and
small: NOT(a=1 AND b=2) becomes the two terms {a NotIn [1]} and {b NotIn [2]}.

Refusals that have no key in common are independent, so their terms multiply; nothing has to be worked out to see that
there would be too many. Those that share keys are worked out together: the nodes are split by one key after the other
(each value that the list mentions, then all others), which gives terms that are exact but too narrow, then each is
widened as far as the decision list allows, and what another term covers is dropped. Pools that share keys so stay at a
handful of terms where the plain cross product would be exponential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, TypeAlias

MAX_TERMS = 256
"""More terms than this make pods unreadable and scheduling slow."""

Rule: TypeAlias = tuple[Mapping[str, str], bool]
"""Labels that a node must all have, and whether nodes that this rule decides are admitted."""

Term: TypeAlias = dict[str, tuple[bool, frozenset[str]]]
"""key -> (True: In, False: NotIn; values). All conditions must hold; an empty Term here means every node."""

ABSENT = (False, frozenset[str]())
"""The condition that a node has no such label."""


class TooManyTermsError(ValueError):
    """The decision list cannot be said in `MAX_TERMS` terms."""

    def __init__(self) -> None:
        super().__init__(
            f"telling the pools' nodes apart takes more than {MAX_TERMS} node selector terms; "
            "give the nodes of each pool a label of their own and use only that in nodeSelector"
        )


def admitted(rules: Sequence[Rule], given: Mapping[str, str] | None = None) -> list[Term]:
    """Terms that admit exactly the nodes that the decision list admits, among those with the labels `given`.

    The last rule is about all other nodes: it asks for no label.
    """
    known: Term = {k: (True, frozenset((v,))) for k, v in (given or {}).items()}
    *rules, rest = _without_idle(_restrict(rules, known))
    refusals_only = rest[1] and not any(verdict for _, verdict in rules)
    groups = _groups(rules) if refusals_only else [rules]
    factors = [_solved(_hashable([*group, rest])) for group in groups]
    if prod(map(len, factors)) > MAX_TERMS:
        raise TooManyTermsError
    terms: Iterable[Term] = ({k: c for part in parts for k, c in part.items()} for parts in product(*factors))
    return sorted(terms, key=_sort_key)


def expressions(term: Term) -> list[dict[str, Any]]:
    """A term as matchExpressions, in the order of keys and values, so that equal input gives equal objects."""
    return [
        {"key": key, "operator": "In" if positive else "NotIn", "values": sorted(values)}
        if values
        else {"key": key, "operator": "DoesNotExist"}
        for key, (positive, values) in sorted(term.items())
    ]


def _sort_key(term: Term) -> tuple[tuple[str, bool, list[str]], ...]:
    return tuple((key, positive, sorted(values)) for key, (positive, values) in sorted(term.items()))


_Hashable: TypeAlias = tuple[tuple[tuple[tuple[str, str], ...], bool], ...]


def _hashable(rules: Iterable[Rule]) -> _Hashable:
    return tuple((tuple(selector.items()), verdict) for selector, verdict in rules)


@lru_cache(maxsize=512)
def _solved(hashable: _Hashable) -> list[Term]:
    """Terms of one group of rules. Handlers of one fleet have most groups in common, so they are kept."""
    rules = [(dict(selector), verdict) for selector, verdict in hashable]
    narrow: list[Term] = []
    for term in _split(rules):
        narrow.append(term)
        if len(narrow) > 2 * MAX_TERMS:  # widening merges some, but hardly half of so many
            raise TooManyTermsError
    return _without_covered(_widen(term, rules) for term in narrow)


def _without_idle(rules: Iterable[Rule]) -> list[Rule]:
    """Without rules that decide nothing: an earlier one takes all their nodes, or the next with the same verdict."""
    kept: list[Rule] = []
    for selector, verdict in rules:
        pairs = selector.items()
        if any(other.items() <= pairs for other, _ in kept):
            continue
        while kept and kept[-1][1] == verdict and pairs <= kept[-1][0].items():
            kept.pop()
        kept.append((selector, verdict))
    return kept


def _groups(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Refusals, whose order does not matter, in groups such that no key is in two of them."""
    groups: list[tuple[set[str], list[Rule]]] = []
    for rule in rules:
        keys, members = set(rule[0]), [rule]
        for group in [g for g in groups if not keys.isdisjoint(g[0])]:
            groups.remove(group)
            keys |= group[0]
            members = [*group[1], *members]
        groups.append((keys, members))
    return [members for _, members in groups]


def _split(rules: Sequence[Rule]) -> Iterator[Term]:
    """Disjoint terms that together admit what the list admits."""
    rules = _decided(rules)
    if len(rules) == 1:
        if rules[0][1]:
            yield {}
        return
    counts = Counter(key for selector, _ in rules for key in selector)
    key = min(counts, key=lambda k: (-counts[k], k))
    elsewhere = [rule for rule in rules if key not in rule[0]]
    # Values after which the same rules remain are one branch: `key In [a, b]`.
    branches: dict[_Hashable, set[str]] = {}
    values = {selector[key] for selector, _ in rules if key in selector}
    for value in sorted(values):
        remaining = [
            (tuple((k, v) for k, v in selector.items() if k != key), verdict)
            for selector, verdict in rules
            if selector.get(key, value) == value
        ]
        branches.setdefault(tuple(remaining), set()).add(value)
    for remaining_rules, of_values in branches.items():
        for term in _split([(dict(s), verdict) for s, verdict in remaining_rules]):
            yield {key: (True, frozenset(of_values)), **term}
    for term in _split(elsewhere):
        yield {key: (False, frozenset(values)), **term}


def _decided(rules: Sequence[Rule]) -> list[Rule]:
    """Without the rules that can no longer change anything."""
    last = next(i for i, (selector, _) in enumerate(rules) if not selector)
    rest, kept = rules[last], list(rules[:last])
    while kept and kept[-1][1] == rest[1]:
        kept.pop()
    return [*kept, rest]


def _restrict(rules: Iterable[Rule], term: Term) -> Iterator[Rule]:
    """The rules for nodes inside the term: without what the term excludes, and without saying what it already fixes."""
    for selector, verdict in rules:
        left: dict[str, str] = {}
        for key, value in selector.items():
            if key not in term:
                left[key] = value
                continue
            positive, values = term[key]
            if positive != (value in values):
                break
            if not positive or len(values) > 1:
                left[key] = value
        else:
            yield left, verdict


def _refusals(term: Term, rules: Sequence[Rule]) -> list[Mapping[str, str]]:
    """Selectors of the rules that refuse some node inside the term.

    A rule refuses none if an earlier one admits all its nodes: the node with the labels of its selector and no others
    is the last to be taken from it. (Inside `In [a, b]` there may be no such node, and too many rules are named.)
    """
    refusals: list[Mapping[str, str]] = []
    admitting: list[Mapping[str, str]] = []
    for selector, verdict in _restrict(rules, term):
        if verdict:
            admitting.append(selector)
        elif not any(other.items() <= selector.items() for other in admitting):
            refusals.append(selector)
    return refusals


def _widen(term: Term, rules: Sequence[Rule]) -> Term:
    """The term with every condition and every value left out that the decision list does not need."""
    for key in sorted(term):
        without = {k: condition for k, condition in term.items() if k != key}
        refusals = _refusals(without, rules)
        if not refusals:
            term = without
        elif not term[key][0] and all(key in selector for selector in refusals):
            term = {**term, key: (False, frozenset(selector[key] for selector in refusals))}
    return term


def _without_covered(terms: Iterable[Term]) -> list[Term]:
    kept: list[Term] = []
    for term in terms:
        if any(_covers(other, term) for other in kept):
            continue
        kept = [other for other in kept if not _covers(term, other)]
        kept.append(term)
    return kept


def _covers(wide: Term, narrow: Term) -> bool:
    """Whether `wide` admits every node that `narrow` admits."""
    if not wide.keys() <= narrow.keys():
        return False
    for key, (positive, values) in wide.items():
        narrow_positive, narrow_values = narrow[key]
        if positive:
            covered = narrow_positive and narrow_values <= values
        else:
            covered = narrow_values.isdisjoint(values) if narrow_positive else narrow_values >= values
        if not covered:
            return False
    return True
