"""Which node a pod goes to: filters that a node must pass, scores that rank the rest, and the reason when none is left.

Pure: the scheduler keeps a `Book` of what sits where and asks `place`. The words of the reasons are those of
Kubernetes' scheduler, because people, dashboards and autoscalers read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from virtfleet.api.selectors import node_term_matches, tolerates
from virtfleet.local.controllers.neighbours import Neighbourhood
from virtfleet.local.controllers.nodes import UNSCHEDULABLE, Node
from virtfleet.local.controllers.pods import Pod, Template
from virtfleet.local.controllers.seats import Book, Seat


@dataclass(frozen=True, slots=True)
class Volumes:
    """What the pod's claims allow. `blocker` says why no node will do, whichever it is."""

    blocker: str = ""
    admits: Callable[[Node], str] = lambda node: ""  # the reason why not, "" where the node will do


NO_VOLUMES = Volumes()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node will not do. `final`: removing other pods from it would not help either."""

    reasons: tuple[str, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Placement:
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
        return Placement(message=_message(total, [volumes.blocker], [Refusal((), final=True)] * total))
    neighbours = Neighbourhood.of(pod, seats, book.namespaces)
    fitting, refusals = [], []
    for seat in seats:
        refusal = refuse(pod, seat, volumes, neighbours)
        if refusal:
            refusals.append(refusal)
        else:
            fitting.append(seat)
    if not fitting:
        counts = Counter(reason for refusal in refusals for reason in refusal.reasons)
        return Placement(message=_message(total, sorted(f"{n} {reason}" for reason, n in counts.items()), refusals))
    if len(fitting) == 1:
        return Placement(node=fitting[0].node.name)
    points = score(pod, fitting, neighbours)
    best = min(fitting, key=lambda s: (-points[s.node.name], len(s.pods), s.node.name))
    return Placement(node=best.node.name)


def _message(total: int, why: list[str], refusals: Iterable[Refusal]) -> str:
    hopes = Counter(
        "Preemption is not helpful for scheduling" if r.final else "No preemption victims found for incoming pod"
        for r in refusals
    )
    preemption = ", ".join(sorted(f"{n} {hope}" for hope, n in hopes.items()))
    none = f"0/{total} nodes are available"
    return f"{none}: {', '.join(why)}. no new claims to deallocate, preemption: {none}: {preemption}."


def refuse(pod: Pod, seat: Seat, volumes: Volumes, neighbours: Neighbourhood) -> Refusal | None:
    """The first filter that the node does not pass."""
    template, node = pod.template, seat.node
    if node.unschedulable and not tolerates(template.tolerations, {"key": UNSCHEDULABLE, "effect": "NoSchedule"}):
        return Refusal(("node(s) were unschedulable",), final=True)
    if taint := node.untolerated(template.tolerations, "NoSchedule", "NoExecute"):
        return Refusal((f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}",), final=True)
    if not node.admits(template):
        return Refusal(("node(s) didn't match Pod's node affinity/selector",), final=True)
    if ports_taken(template, seat):
        return Refusal(("node(s) didn't have free ports for the requested pod ports",), final=False)
    if refusal := lacks_resources(template, seat):
        return refusal
    if reason := volumes.admits(node):
        return Refusal((reason,), final=True)
    if reason := neighbours.refuse_spread(node):
        return Refusal((reason,), final=False)
    if reason := neighbours.refuse_affinity(node):
        return Refusal((reason,), final=False)
    return None


def ports_taken(template: Template, seat: Seat) -> bool:
    """Whether a host port is in use. The wildcard address overlaps with every other."""
    for protocol, address, port in template.host_ports:
        for (protocol2, address2, port2), n in seat.ports.items():
            overlap = address == address2 or "0.0.0.0" in (address, address2)
            if n > 0 and protocol == protocol2 and port == port2 and overlap:
                return True
    return False


def lacks_resources(template: Template, seat: Seat) -> Refusal | None:
    """Every resource that does not fit. Asking for more than the node ever has is final."""
    reasons, final = [], False
    allocatable = seat.node.allocatable
    if len(seat.pods) + 1 > allocatable.get("pods", 0):
        reasons.append("Too many pods")
    for name, asked in template.requests.items():
        if asked > allocatable.get(name, 0) - seat.used[name]:
            reasons.append(f"Insufficient {name}")
            final |= asked > allocatable.get(name, 0)
    return Refusal(tuple(reasons), final) if reasons else None


def score(pod: Pod, seats: list[Seat], neighbours: Neighbourhood) -> dict[str, float]:
    """Points per node, from several views that each span 0 to 100; the weights are Kubernetes' defaults."""
    views: list[tuple[float, dict[str, float]]] = [
        (3, _spanned({s.node.name: -_soft_taints(pod.template, s.node) for s in seats})),
        (2, _spanned({s.node.name: _preference(pod.template, s.node) for s in seats})),
        (2, _spanned({s.node.name: neighbours.preference(s.node) for s in seats})),
        (2, _spanned({s.node.name: -float(s.owners[pod.owner_uid] if pod.owner_uid else 0) for s in seats})),
        (1, {s.node.name: _free(pod.template, s) for s in seats}),
    ]
    return {s.node.name: sum(weight * view[s.node.name] for weight, view in views) for s in seats}


def _spanned(raw: dict[str, float]) -> dict[str, float]:
    low, high = min(raw.values()), max(raw.values())
    if low == high:
        return dict.fromkeys(raw, 0.0)
    return {name: 100 * (value - low) / (high - low) for name, value in raw.items()}


def _soft_taints(template: Template, node: Node) -> float:
    return sum(
        1 for t in node.taints if t.get("effect") == "PreferNoSchedule" and not tolerates(template.tolerations, t)
    )


def _preference(template: Template, node: Node) -> float:
    affinity: dict[str, Any] = template.affinity.get("nodeAffinity") or {}
    return sum(
        float(p.get("weight", 0))
        for p in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        if node_term_matches(p.get("preference") or {}, node.labels, node.name)
    )


def _free(template: Template, seat: Seat) -> float:
    """How much of cpu and memory would stay free, in percent: pods go where there is room."""
    shares = []
    for name in ("cpu", "memory"):
        have = seat.node.allocatable.get(name, 0)
        left = have - seat.used[name] - template.requests.get(name, 0)
        shares.append(100 * max(left, 0) / have if have else 0.0)
    return sum(shares) / len(shares)
