"""Which node a pod goes to: filters that a node must pass, scores that rank the rest, and the reason when none is left.

Pure: the scheduler keeps a `Book` of what sits where and asks `place`. The words of the reasons are those of
Kubernetes' scheduler, because people, dashboards and autoscalers read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from virtfleet.api.selectors import node_term_matches, tolerates
from virtfleet.local.controllers.neighbours import Neighbourhood
from virtfleet.local.controllers.nodes import UNSCHEDULABLE, NodeView
from virtfleet.local.controllers.pods import Pod, Template
from virtfleet.local.controllers.seats import Book, Seat


@dataclass(frozen=True, slots=True)
class Volumes:
    """What the pod's claims allow. `blocker` says why no node will do, whichever it is."""

    blocker: str = ""
    admits: Callable[[NodeView], str] = lambda node: ""  # the reason why not, "" where the node will do


NO_VOLUMES = Volumes()


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
        return Placement(message=f"0/{total} nodes are available: {volumes.blocker}.")
    neighbours = Neighbourhood.of(pod, seats, book.namespaces)
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


def _soft_taints(template: Template, node: NodeView) -> float:
    return sum(
        1 for t in node.taints if t.get("effect") == "PreferNoSchedule" and not tolerates(template.tolerations, t)
    )


def _preference(template: Template, node: NodeView) -> float:
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
