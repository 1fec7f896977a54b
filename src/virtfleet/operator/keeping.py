"""Whose handler keeps a node: said by a label of the node, until the next handler is proven there. Pure.

A node changes hands by its labels or by a change of pools, and a DaemonSet acts on either at once. So the operator
labels each node with the DaemonSet whose handler serves it, and that label outweighs all others (`pools.placement`).
DaemonSets can then change in any order. A node changes hands when the operator changes its label, and a DaemonSet that
is wanted no more goes when it keeps no node.

Between two handlers a node gets whatever its DaemonSet is then. That was proven there when the old handler went, so the
DaemonSet does not change until the new one is there, unless that is proven on the node as well.
All of it follows from the objects: an operator that is killed in between goes on where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from virtfleet.api import names
from virtfleet.kube.resource import Obj
from virtfleet.operator.handlerpods import HandlerPod
from virtfleet.operator.handlers import CONTENT, PLACEMENT, VIRT_HANDLER
from virtfleet.operator.proof import Proving, images
from virtfleet.operator.render import APPLIED
from virtfleet.operator.rollout import Change, desired
from virtfleet.operator.world import NodeView
from virtfleet.pools.model import Pool, owner
from virtfleet.pools.placement import PRIMARY


@dataclass(slots=True)
class Keeping:
    """What is to be done about nodes."""

    labels: dict[str, str | None] = field(default_factory=dict)
    """Nodes whose label is not as it should be: the DaemonSet that keeps them, or None."""
    moves: list[Change] = field(default_factory=list)
    """Handlers that are to make room for another DaemonSet's."""
    between: dict[str, str] = field(default_factory=dict)
    """Nodes that wait for a handler of the DaemonSet that keeps them."""
    transit: int = 0
    """Those of them that have their old handler for a last moment."""


def look(
    pools: tuple[Pool, ...], installed: Mapping[str, Obj], nodes: Iterable[NodeView], pods: Iterable[HandlerPod]
) -> Keeping:
    """Over all nodes that are up. `installed` are the handlers' DaemonSets by name."""
    pods = sorted(pods, key=lambda pod: pod.ready)
    serving = {pod.node: pod for pod in pods if not pod.ending}
    occupied = {pod.node for pod in pods}
    staying = {name: ds for name, ds in installed.items() if not ds["metadata"].get("deletionTimestamp")}
    placed = Counter(pod.daemon_set for pod in serving.values() if pod.node)
    result = Keeping()
    for node in nodes:
        if not node.ready:
            continue
        label, pool, pod = node.labels.get(names.SERVED_BY), owner(pools, node.labels), serving.get(node.name)
        keeper = VIRT_HANDLER if label == PRIMARY else label
        successor = pool.daemon_set if pool else VIRT_HANDLER
        if keeper not in staying:
            if pod and pod.daemon_set in staying and not pod.failure:
                result.labels[node.name] = pod.daemon_set
            elif label is not None and not pod:
                result.labels[node.name] = None
        elif pod and pod.daemon_set == keeper:
            if successor != keeper:
                result.moves.append(Change(pod, successor))
        elif node.name in occupied or placed[keeper] < desired(staying[keeper]):
            result.between[node.name] = keeper
            result.transit += pod is not None
        else:  # its DaemonSet has been given other nodes by the administrator
            result.labels[node.name] = None
    return result


def value(daemon_set: str | None) -> str | None:
    """What the label of a node says that a DaemonSet keeps."""
    return PRIMARY if daemon_set == VIRT_HANDLER else daemon_set


def moves_nodes(installed: Mapping[str, Obj], wanted: Mapping[str, Obj]) -> bool:
    """Whether a DaemonSet is to have other nodes than it has now, as far as labels do not keep them."""
    return any(name not in wanted or _placement(ds) != _placement(wanted[name]) for name, ds in installed.items())


def unfinished(
    installed: Mapping[str, Obj], wanted: Mapping[str, Obj], between: Mapping[str, str], proving: Proving
) -> frozenset[str]:
    """DaemonSets that must stay as they are, because a node waits for a handler that is as they are now."""
    return frozenset(
        name
        for node, name in between.items()
        if name in installed and name in wanted and _content(installed[name]) != _content(wanted[name])
        if not images(wanted[name]) <= images(installed[name]) and not proving.proven(wanted[name], node)
    )


def narrowing(daemon_set: Obj) -> Obj | None:
    """The change by which a DaemonSet that is wanted no more takes no other nodes than those that it keeps."""
    name, spec = daemon_set["metadata"]["name"], daemon_set["spec"]["template"]["spec"]
    if (spec.get("nodeSelector") or {}).get(names.SERVED_BY) == name:
        return None
    selector = {"template": {"spec": {"nodeSelector": {names.SERVED_BY: name}}}}
    # Without the record of what was applied, everything is written anew should it be wanted again.
    return {"metadata": {"annotations": {APPLIED: None}}, "spec": selector}


def _placement(daemon_set: Obj) -> Obj:
    spec = daemon_set["spec"]["template"]["spec"]
    return {key: spec[key] for key in PLACEMENT if spec.get(key)}


def _content(daemon_set: Obj) -> object:
    return (daemon_set["spec"]["template"]["metadata"].get("annotations") or {}).get(CONTENT)
