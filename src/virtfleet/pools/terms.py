"""Decision lists over node labels, written as Kubernetes node selector terms.

Who serves a node is a decision list: ask the pools in turn, the first whose nodeSelector the node's labels contain
decides. Kubernetes knows only ORed terms of ANDed conditions. `admitted` turns the one into the other exactly, and
small: NOT(a=1 AND b=2) becomes the two terms {a NotIn [1]} and {b NotIn [2]}.

It splits the nodes by one key after the other (each value that the list mentions, then all others), which gives terms
that are exact but too narrow, then widens each as far as the decision list allows, and drops what another term covers.
Pools that share keys so stay at a handful of terms where the plain cross product would be exponential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

MAX_TERMS = 256
"""More terms than this make pods unreadable and scheduling slow."""

Rule: TypeAlias = tuple[Mapping[str, str], bool]
"""Labels that a node must all have, and whether nodes that this rule decides are admitted."""

Term: TypeAlias = dict[str, tuple[bool, frozenset[str]]]
"""key -> (True: In, False: NotIn; values). All conditions must hold; an empty Term here means every node."""


class TooManyTermsError(ValueError):
    """The decision list cannot be said in `MAX_TERMS` terms."""

    def __init__(self) -> None:
        super().__init__(
            f"telling the pools' nodes apart takes more than {MAX_TERMS} node selector terms; "
            "give the nodes of each pool a label of their own and use only that in nodeSelector"
        )


def admitted(rules: Sequence[Rule], otherwise: bool, given: Mapping[str, str] | None = None) -> list[Term]:
    """Terms that admit exactly the nodes that the decision list admits, among those with the labels `given`."""
    rules = list(_restrict(rules, {k: (True, frozenset((v,))) for k, v in (given or {}).items()}))
    narrow: list[Term] = []
    for term in _split(rules, otherwise):
        narrow.append(term)
        if len(narrow) > 2 * MAX_TERMS:  # widening merges some, but never half of so many
            raise TooManyTermsError
    terms = _without_covered(_widen(term, rules, otherwise) for term in narrow)
    if len(terms) > MAX_TERMS:
        raise TooManyTermsError
    return sorted(terms, key=_sort_key)


def expressions(term: Term) -> list[dict[str, Any]]:
    """A term as matchExpressions, in the order of keys and values, so that equal input gives equal objects."""
    return [
        {"key": key, "operator": "In" if positive else "NotIn", "values": sorted(values)}
        for key, (positive, values) in sorted(term.items())
    ]


def _sort_key(term: Term) -> tuple[tuple[str, bool, list[str]], ...]:
    return tuple((key, positive, sorted(values)) for key, (positive, values) in sorted(term.items()))


def _split(rules: Sequence[Rule], otherwise: bool) -> Iterator[Term]:
    """Disjoint terms that together admit what the list admits."""
    rules, otherwise = _decided(rules, otherwise)
    if not rules:
        if otherwise:
            yield {}
        return
    counts = Counter(key for selector, _ in rules for key in selector)
    key = min(counts, key=lambda k: (-counts[k], k))
    values = {selector[key] for selector, _ in rules if key in selector}
    elsewhere = [rule for rule in rules if key not in rule[0]]
    # Values after which the same rules remain are one branch: `key In [a, b]`.
    branches: dict[tuple[tuple[tuple[tuple[str, str], ...], bool], ...], set[str]] = {}
    for value in sorted(values):
        remaining = [
            ({k: v for k, v in selector.items() if k != key}, verdict)
            for selector, verdict in rules
            if selector.get(key, value) == value
        ]
        branches.setdefault(tuple((tuple(s.items()), verdict) for s, verdict in remaining), set()).add(value)
    for remaining_rules, of_values in branches.items():
        for term in _split([(dict(s), verdict) for s, verdict in remaining_rules], otherwise):
            yield {key: (True, frozenset(of_values)), **term}
    for term in _split(elsewhere, otherwise):
        yield {key: (False, frozenset(values)), **term}


def _decided(rules: Sequence[Rule], otherwise: bool) -> tuple[list[Rule], bool]:
    """Without the rules that can no longer change anything."""
    open_rules: list[Rule] = []
    for selector, verdict in rules:
        if not selector:
            otherwise = verdict
            break
        open_rules.append((selector, verdict))
    while open_rules and open_rules[-1][1] == otherwise:
        open_rules.pop()
    return open_rules, otherwise


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


def _admits_all(term: Term, rules: Sequence[Rule], otherwise: bool) -> bool:
    """Whether every node inside the term is admitted (for a term with `In [a, b]` it may say no where yes is true)."""
    refusals = [(selector, not verdict) for selector, verdict in _restrict(rules, term)]
    return next(_split(refusals, not otherwise), None) is None


def _widen(term: Term, rules: Sequence[Rule], otherwise: bool) -> Term:
    """The term with every condition and every value left out that the decision list does not need."""
    for key in sorted(term):
        without = {k: condition for k, condition in term.items() if k != key}
        if _admits_all(without, rules, otherwise):
            term = without
            continue
        positive, values = term[key]
        for value in sorted(values) if not positive and len(values) > 1 else ():
            wider = {**term, key: (False, term[key][1] - {value})}
            if _admits_all(wider, rules, otherwise):
                term = wider
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
    for key, (positive, values) in wide.items():
        if key not in narrow:
            return False
        narrow_positive, narrow_values = narrow[key]
        if positive:
            if not narrow_positive or not narrow_values <= values:
                return False
        elif narrow_positive:
            if not narrow_values.isdisjoint(values):
                return False
        elif not narrow_values >= values:
            return False
    return True
