"""Which node a pod goes to: filters that a node must pass, scores that rank the rest, and the reason when none is left.

Pure: the scheduler keeps a `Book` of what sits where and asks `place`. Pods that were just bound are entered at once
and not only when the cache shows them, so that two pods never get the same room. Entries go by uid, so that the cache's
later word changes nothing. The words of the reasons are those of
Kubernetes' scheduler, because people, dashboards and autoscalers read them.

Constraints between pods, (anti-)affinity and topology spread, are looked at once per pod that is placed. The terms of a
pod select other pods; what counts is in which domains (values of a node label such as the hostname or the zone) those
live. So one pass over the placed pods gives a table of domains, and each node is then a lookup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from virtfleet.api.selectors import NOTHING, Requirement, Selector, from_label_selector, node_term_matches, tolerates
from virtfleet.local.controllers.nodes import PREFERRED, REQUIRED, UNSCHEDULABLE, NodeView
from virtfleet.local.controllers.pods import Pod, Template

Domain = tuple[str, str]  # topology key, value
Namespaces = Callable[[str], Mapping[str, str] | None]  # the labels of a namespace


class Seat:
    """One node with the pods on it."""

    __slots__ = ("guards", "node", "owners", "pods", "ports", "used")

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.pods: dict[str, Pod] = {}  # by uid
        self.guards: dict[str, Pod] = {}  # those of them with anti-affinity, which others must respect
        self.owners: Counter[str] = Counter()  # uid of a workload -> its pods here
        self.used: Counter[str] = Counter()
        self.ports: Counter[tuple[str, str, int]] = Counter()

    def add(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        if pod.template.affinity.get("podAntiAffinity"):
            self.guards[pod.uid] = pod
        self.owners[pod.owner_uid] += 1
        self.used.update(pod.template.requests)
        self.ports.update(pod.template.host_ports)

    def remove(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.guards.pop(uid, None)
        self.used.subtract(pod.template.requests)
        # What nobody has any more is not kept.
        self.owners -= Counter([pod.owner_uid])
        self.ports -= Counter(pod.template.host_ports)


class Book:
    """All seats, and who sits where. Pods may name nodes that do not exist, yet or any more."""

    def __init__(self, namespaces: Namespaces = lambda name: None) -> None:
        self._nodes: set[str] = set()
        self._seats: dict[str, Seat] = {}
        self._where: dict[str, str] = {}  # pod uid -> node
        self.namespaces = namespaces  # their labels, for namespaceSelector

    def seats(self) -> list[Seat]:
        """The seats of nodes that exist."""
        return [self._seats[name] for name in sorted(self._nodes)]

    def node_seen(self, node: NodeView) -> None:
        self._nodes.add(node.name)
        self._seat(node.name).node = node

    def node_gone(self, name: str) -> None:
        self._nodes.discard(name)

    def enter(self, pod: Pod, node: str) -> None:
        """Seat the pod, or move it; entering it again where it sits only refreshes what it uses."""
        self.leave(pod.uid)
        self._seat(node).add(pod)
        self._where[pod.uid] = node

    def leave(self, uid: str) -> None:
        node = self._where.pop(uid, None)
        if node is not None:
            self._seats[node].remove(uid)
            if node not in self._nodes and not self._seats[node].pods:
                del self._seats[node]

    def _seat(self, name: str) -> Seat:
        if name not in self._seats:
            self._seats[name] = Seat(NodeView(name=name))
        return self._seats[name]


@dataclass(frozen=True, slots=True)
class Volumes:
    """What the pod's claims allow. `blocker` says why no node will do, whichever it is."""

    blocker: str = ""
    admits: Callable[[NodeView], str] = lambda node: ""  # the reason why not, "" where the node will do


NO_VOLUMES = Volumes()


class Placement(NamedTuple):
    """The answer: a node, or the message that says why there is none."""

    node: str = ""
    message: str = ""


def place(pod: Pod, book: Book, volumes: Volumes = NO_VOLUMES) -> Placement:
    """Choose a node for the pod."""
    seats = book.seats()
    total = len(seats)
    if not total:
        return Placement(message="no nodes available to schedule pods")
    if volumes.blocker:
        return Placement(message=f"0/{total} nodes are available: {volumes.blocker}.")
    neighbours = Neighbourhood(pod, seats, book.namespaces)
    refusals = {seat.node.name: refuse(pod, seat, volumes, neighbours) for seat in seats}
    fitting = [seat for seat in seats if not refusals[seat.node.name]]
    if not fitting:
        counts = Counter(reason for reasons in refusals.values() for reason in reasons)
        why = ", ".join(sorted(f"{n} {reason}" for reason, n in counts.items()))
        return Placement(message=f"0/{total} nodes are available: {why}.")
    points = score(pod, fitting, neighbours)
    best = min(fitting, key=lambda s: (-points[s.node.name], len(s.pods), s.node.name))
    return Placement(node=best.node.name)


def refuse(pod: Pod, seat: Seat, volumes: Volumes, neighbours: Neighbourhood) -> list[str]:
    """What the first filter says that the node does not pass."""
    template, node = pod.template, seat.node
    if node.unschedulable and not tolerates(template.tolerations, {"key": UNSCHEDULABLE, "effect": "NoSchedule"}):
        return ["node(s) were unschedulable"]
    if taint := node.untolerated(template.tolerations, "NoSchedule", "NoExecute"):
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"]
    if not node.admits(template):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if ports_taken(template, seat):
        return ["node(s) didn't have free ports for the requested pod ports"]
    if reasons := lacks_resources(template, seat):
        return reasons
    reason = volumes.admits(node) or neighbours.refuse(node)
    return [reason] if reason else []


def ports_taken(template: Template, seat: Seat) -> bool:
    """Whether a host port is in use. The wildcard address overlaps with every other."""
    return any(
        (protocol, port) == (other, number) and (address == place or "0.0.0.0" in (address, place))
        for protocol, address, port in template.host_ports
        for other, place, number in seat.ports
    )


def lacks_resources(template: Template, seat: Seat) -> list[str]:
    """Every resource that does not fit."""
    allocatable, used = seat.node.allocatable, seat.used
    reasons = ["Too many pods"] if len(seat.pods) + 1 > allocatable.get("pods", 0) else []
    short = [name for name, asked in template.requests.items() if asked > allocatable.get(name, 0) - used[name]]
    return [*reasons, *(f"Insufficient {name}" for name in short)]


def score(pod: Pod, seats: list[Seat], neighbours: Neighbourhood) -> dict[str, float]:
    """Points per node, from several views that each span 0 to 100; the weights are Kubernetes' defaults."""
    views = (
        (3, _spanned([-_soft_taints(pod.template, s.node) for s in seats])),
        (2, _spanned([_preference(pod.template, s.node) for s in seats])),
        (2, _spanned([neighbours.preference(s.node) for s in seats])),
        (2, _spanned([-s.owners[pod.owner_uid] if pod.owner_uid else 0 for s in seats])),
        (1, [_free(pod.template, s) for s in seats]),
    )
    return {s.node.name: sum(weight * view[i] for weight, view in views) for i, s in enumerate(seats)}


def _spanned(raw: Sequence[float]) -> list[float]:
    low, high = min(raw), max(raw)
    return [100 * (value - low) / (high - low) if high > low else 0.0 for value in raw]


def _soft_taints(template: Template, node: NodeView) -> float:
    soft = [t for t in node.taints if t.get("effect") == "PreferNoSchedule"]
    return sum(not tolerates(template.tolerations, t) for t in soft)


def _preference(template: Template, node: NodeView) -> float:
    return sum(
        float(p.get("weight", 0))
        for p in (template.affinity.get("nodeAffinity") or {}).get(PREFERRED) or ()
        if node_term_matches(p.get("preference") or {}, node.labels, node.name)
    )


def _free(template: Template, seat: Seat) -> float:
    """How much of cpu and memory would stay free, in percent: pods go where there is room."""
    share = 0.0
    for name in ("cpu", "memory"):
        have = seat.node.allocatable.get(name, 0)
        left = have - seat.used[name] - template.requests.get(name, 0)
        share += 50 * max(left, 0) / have if have else 0.0
    return share


# --- constraints between pods ----------------------------------------------------------------------------------------


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

    def domain(self, pod: Pod, node: NodeView, namespaces: Namespaces) -> set[Domain]:
        """The domain that the node is in, if the term selects the pod; else none."""
        value = node.labels.get(self.topology)
        return {(self.topology, value)} if value is not None and self.selects(pod, namespaces) else set()


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


class Neighbourhood:
    """Everything about other pods that decides where one pod may go."""

    def __init__(self, pod: Pod, seats: list[Seat], namespaces: Namespaces) -> None:
        attract, repel, prefer = terms(pod, "podAffinity"), terms(pod, "podAntiAffinity"), preferences(pod)
        near: list[set[Domain]] = [set() for _ in attract]
        self.avoided: set[Domain] = set()  # the pod's own anti-affinity
        self.guarded: set[Domain] = set()  # anti-affinity of pods that are there
        self.liked: Counter[Domain] = Counter()
        for seat in seats:
            for guard in seat.guards.values():
                for term in terms(guard, "podAntiAffinity"):
                    self.guarded |= term.domain(pod, seat.node, namespaces)
            for other in seat.pods.values() if attract or repel or prefer else ():
                for term, domains in zip(attract, near, strict=True):
                    domains |= term.domain(other, seat.node, namespaces)
                for term in repel:
                    self.avoided |= term.domain(other, seat.node, namespaces)
                for weight, term in prefer:
                    self.liked.update(dict.fromkeys(term.domain(other, seat.node, namespaces), weight))
        # The first pod of a group that wants to be together may go anywhere.
        first = not any(near) and all(term.selects(pod, namespaces) for term in attract)
        # Of affinity: topology keys, and the domains that will do.
        self.wanted = [] if first else [(term.topology, domains) for term, domains in zip(attract, near, strict=True)]
        hard = [c for c in pod.template.spread if c.get("whenUnsatisfiable") == "DoNotSchedule"]
        self.spreads = [_spread(constraint, pod, seats) for constraint in hard]

    def refuse(self, node: NodeView) -> str:
        """Why the pod cannot go there, if it cannot."""
        spread = "node(s) didn't match pod topology spread constraints"
        for topology, full in self.spreads:
            if topology not in node.labels:
                return f"{spread} (missing required label)"
            if node.labels[topology] in full:
                return spread
        if any((topology, node.labels.get(topology)) not in domains for topology, domains in self.wanted):
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
