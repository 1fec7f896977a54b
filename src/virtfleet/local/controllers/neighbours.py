"""Constraints between pods: (anti-)affinity and topology spread, looked at once per pod that is placed.

The terms of a pod select other pods; what counts is in which domains (values of a node label such as the hostname or
the zone) those live. So one pass over the placed pods gives a table of domains, and each node is then a lookup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtfleet.api.selectors import NOTHING, Requirement, Selector, from_label_selector
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.seats import Seat

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Domain = tuple[str, str]  # topology key, value
Namespaces = Callable[[str], Mapping[str, str] | None]  # the labels of a namespace


@dataclass(frozen=True, slots=True)
class Term:
    """One pod affinity term, ready to be matched."""

    topology: str
    selector: Selector
    names: frozenset[str]  # namespaces by name
    namespaces: Selector  # and by label

    @classmethod
    def of(cls, term: Mapping[str, Any], pod: Pod) -> Term:
        wanted = from_label_selector(term.get("labelSelector"))
        picked = term.get("namespaceSelector")
        named = term.get("namespaces") or ([pod.namespace] if picked is None else [])
        return cls(
            topology=term["topologyKey"],
            selector=_with_keys(wanted, term.get("matchLabelKeys"), pod),
            names=frozenset(named),
            namespaces=NOTHING if picked is None else from_label_selector(picked),
        )

    def selects(self, pod: Pod, namespaces: Namespaces) -> bool:
        in_scope = pod.namespace in self.names or self.namespaces.matches(namespaces(pod.namespace))
        return in_scope and self.selector.matches(pod.labels)


def terms(pod: Pod, kind: str) -> list[Term]:
    """The required terms of podAffinity or podAntiAffinity."""
    return [Term.of(t, pod) for t in (pod.template.affinity.get(kind) or {}).get(REQUIRED) or ()]


def preferences(pod: Pod) -> list[tuple[int, Term]]:
    """The preferred terms with their weights, negative for anti-affinity."""
    return [
        (sign * p.get("weight", 0), Term.of(p["podAffinityTerm"], pod))
        for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1))
        for p in (pod.template.affinity.get(kind) or {}).get(PREFERRED) or ()
    ]


@dataclass(slots=True)
class Neighbourhood:
    """Everything about other pods that decides where one pod may go."""

    wanted: list[tuple[str, set[str]]] = field(default_factory=list)  # affinity: topology key, domains that will do
    avoided: set[Domain] = field(default_factory=set)  # the pod's own anti-affinity
    guarded: set[Domain] = field(default_factory=set)  # anti-affinity of pods that are there
    liked: Counter[Domain] = field(default_factory=Counter)
    spreads: list[tuple[str, set[str]]] = field(default_factory=list)  # topology key, domains that have enough

    @classmethod
    def of(cls, pod: Pod, seats: list[Seat], namespaces: Namespaces) -> Neighbourhood:
        it = cls()
        attract, repel, prefer = terms(pod, "podAffinity"), terms(pod, "podAntiAffinity"), preferences(pod)
        near: list[set[str]] = [set() for _ in attract]
        for seat in seats:
            labels = seat.node.labels
            for guard in seat.guards.values():
                for term in terms(guard, "podAntiAffinity"):
                    if term.topology in labels and term.selects(pod, namespaces):
                        it.guarded.add((term.topology, labels[term.topology]))
            if not (attract or repel or prefer):
                continue
            for other in seat.pods.values():
                for term, values in zip(attract, near, strict=True):
                    if term.topology in labels and term.selects(other, namespaces):
                        values.add(labels[term.topology])
                for term in repel:
                    if term.topology in labels and term.selects(other, namespaces):
                        it.avoided.add((term.topology, labels[term.topology]))
                for weight, term in prefer:
                    if term.topology in labels and term.selects(other, namespaces):
                        it.liked[term.topology, labels[term.topology]] += weight
        # The first pod of a group that wants to be together may go anywhere.
        first = not any(near) and all(term.selects(pod, namespaces) for term in attract)
        it.wanted = [] if first else [(t.topology, values) for t, values in zip(attract, near, strict=True)]
        it.spreads = [
            _spread(c, pod, seats) for c in pod.template.spread if c.get("whenUnsatisfiable") == "DoNotSchedule"
        ]
        return it

    def refuse(self, node: NodeView) -> str:
        """Why the pod cannot go there, if it cannot."""
        spread = "node(s) didn't match pod topology spread constraints"
        for topology, full in self.spreads:
            if topology not in node.labels:
                return f"{spread} (missing required label)"
            if node.labels[topology] in full:
                return spread
        if any(node.labels.get(topology) not in values for topology, values in self.wanted):
            return "node(s) didn't match pod affinity rules"
        if any(node.labels.get(topology) == value for topology, value in self.avoided):
            return "node(s) didn't match pod anti-affinity rules"
        if any(node.labels.get(topology) == value for topology, value in self.guarded):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    def preference(self, node: NodeView) -> float:
        return sum(weight for (topology, value), weight in self.liked.items() if node.labels.get(topology) == value)


def _spread(constraint: Mapping[str, Any], pod: Pod, seats: list[Seat]) -> tuple[str, set[str]]:
    """The key of a hard topology spread constraint, and the domains that can take none more."""
    topology = constraint["topologyKey"]
    selector = _with_keys(from_label_selector(constraint.get("labelSelector")), constraint.get("matchLabelKeys"), pod)
    honest = constraint.get("nodeTaintsPolicy") == "Honor"
    counts: Counter[str] = Counter()
    for seat in seats:
        value = seat.node.labels.get(topology)
        barred = honest and seat.node.untolerated(pod.template.tolerations, "NoSchedule", "NoExecute")
        if value is not None and seat.node.admits(pod.template) and not barred:
            counts[value] += sum(
                other.namespace == pod.namespace and other.deleting is None and selector.matches(other.labels)
                for other in seat.pods.values()
            )
    fewest = min(counts.values(), default=0) if len(counts) >= (constraint.get("minDomains") or 1) else 0
    most = fewest + constraint.get("maxSkew", 1) - selector.matches(pod.labels)
    return topology, {value for value, number in counts.items() if number > most}


def _with_keys(selector: Selector, keys: Iterable[str] | None, pod: Pod) -> Selector:
    """The selector with matchLabelKeys: the pod's own values of these labels are required too."""
    extra = [Requirement(k, "In", (pod.labels[k],)) for k in keys or () if k in pod.labels]
    return Selector((*selector.requirements, *extra))
