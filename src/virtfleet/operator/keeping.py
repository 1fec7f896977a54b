"""Nodes that the primary handler keeps: by a label, until their pool's handler is proven there. Pure.

A node becomes a pool's by its labels, or by a change of the pool, and a DaemonSet acts on that at once. So the operator
labels the nodes that the primary handler serves, and that label outweighs all others (see `handlers`). Such a node
changes hands when the operator takes the label away. A node that leaves a pool has no such label: there the operator
holds the change of the DaemonSets themselves, if it was a change of pools (`handover`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from virtfleet.api import names
from virtfleet.operator.handlerpods import HandlerPod
from virtfleet.operator.handlers import PRIMARY, VIRT_HANDLER
from virtfleet.operator.rollout import Change
from virtfleet.operator.world import Node
from virtfleet.pools.model import Pool, owner


@dataclass(slots=True)
class Keeping:
    """What is to be done about nodes."""

    keep: list[str] = field(default_factory=list)
    """Nodes to be labelled before DaemonSets change."""
    release: list[str] = field(default_factory=list)
    """Nodes with a label that nobody needs: a pool's handler is there already, or there are no pools."""
    moves: list[Change] = field(default_factory=list)
    """Handlers of the primary that are to make room for a pool's."""
    leaving: list[Change] = field(default_factory=list)
    """Handlers of a pool on nodes that are not its any more."""
    transit: int = 0
    """Nodes that were let go and have their old handler for a last moment."""


def look(pools: tuple[Pool, ...], nodes: Iterable[Node], pods: Iterable[HandlerPod], *, settled: bool) -> Keeping:
    """Over all nodes. `settled` is whether the primary's DaemonSet has the placement that it should have."""
    serving = {pod.spec.node_name: pod for pod in sorted(pods, key=lambda pod: pod.ready) if not pod.ending}
    result = Keeping()
    for node in nodes:
        if not node.ready:
            continue
        pool, pod = owner(pools, node.labels), serving.get(node.name)
        successor = pool.daemon_set if pool else VIRT_HANDLER
        primary = pod is not None and pod.daemon_set == VIRT_HANDLER
        if node.labels.get(names.SERVED_BY) == PRIMARY:
            if pod and primary and pool:
                result.moves.append(Change(pod, successor))
            elif (pool and pod) or (settled and not pools):
                result.release.append(node.name)
        elif pod and primary and pools:
            if settled and pool:
                result.transit += 1
            elif not pod.failure:
                result.keep.append(node.name)
        elif pod and not primary and pod.daemon_set not in ("", successor):
            result.leaving.append(Change(pod, successor))
    return result
