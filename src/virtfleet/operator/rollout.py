"""Rolling out new handlers over the whole fleet: one as a canary, then a tenth at a time, none further once one fails.

Two things can be new about a node's handler: what it is made of, or whose it is. Both go the same way. First the new
images are proven on the node (`proof`), then the old handler is taken away. The handlers of every DaemonSet are tried
on one node before a second one gets them, and as long as one is untried only one handler is away in all pools. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from virtfleet.kube.resource import Obj
from virtfleet.operator.handlerpods import HandlerPod
from virtfleet.operator.proof import Proving

SHARE = 10
"""One in so many handlers may be away at once, after the canary."""

CANARY_FAILED, IMAGE_UNPROVEN = "CanaryFailed", "ImageUnproven"


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far one DaemonSet's Pods are."""

    updated: int
    outdated: int
    starting: int = 0
    """New Pods that are not ready yet, and those still to be made."""
    failure: str = ""
    """Why one of the new Pods does not come up."""
    tried: bool = False
    """Whether one of the new Pods is ready."""

    @property
    def done(self) -> bool:
        return not self.outdated and not self.starting


@dataclass(frozen=True, slots=True)
class Change:
    """A handler that is to make room on its node for one of the DaemonSet `successor`."""

    pod: HandlerPod
    successor: str

    @property
    def node(self) -> str:
        return self.pod.node

    @property
    def moves(self) -> bool:
        """Whether the node gets another owner; otherwise its owner makes a new Pod."""
        return self.pod.daemon_set != self.successor


@dataclass(slots=True)
class Plan:
    """Which handlers go now, and how far everything is."""

    rollouts: dict[str, Rollout] = field(default_factory=dict)
    replace: list[Change] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Reason and message of what stopped it all."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a plan is made of."""

    sets: Mapping[str, Obj]
    pods: Sequence[HandlerPod]
    down: frozenset[str] = frozenset()
    """Nodes that are not Ready themselves: nothing can be replaced there, and nobody waits for them."""
    moves: Sequence[Change] = ()
    """Handlers on nodes that are another DaemonSet's now, also of one that does not exist yet."""
    transit: int = 0
    """Nodes that were let go and have their old handler for a last moment."""
    unfinished: frozenset[str] = frozenset()
    """DaemonSets that are still to be changed."""

    def up(self) -> list[HandlerPod]:
        return [pod for pod in self.pods if pod.node not in self.down]


def plan(fleet: Fleet, proving: Proving, now: datetime) -> Plan:
    """The next step for all handlers."""
    rollouts = {name: _rollout(fleet, name, now) for name in fleet.sets}
    moves = [change for change in fleet.moves if change.successor in fleet.sets]
    # Those that do not work anyway go first: nothing is lost with them. Then what nobody has tried yet.
    changes = sorted(
        (*_outdated(fleet), *moves),
        key=lambda c: (c.pod.ready, rollouts[c.successor].tried, c.pod.daemon_set, c.pod.metadata.name),
    )
    share = max(1, sum(map(desired, fleet.sets.values())) // SHARE)
    most = share if _tried(fleet, rollouts, changes) else 1
    ready = [c for c in changes[:most] if _proven(fleet, c, proving)]
    failure = _failure(rollouts, changes, proving)
    # Nodes without a handler that soon have one.
    going = sum(pod.ending for pod in fleet.up())
    away = fleet.transit + going + sum(rollout.starting for rollout in rollouts.values())
    replace = [] if failure else ready[: max(0, most - away)]
    return Plan(rollouts, replace, failure)


def paced(daemon_set: Obj, pods: Iterable[HandlerPod]) -> Obj:
    """A DaemonSet that says how many of its handlers may be away now, where KubeVirt's users and tools read it.

    It is for the reader: a DaemonSet that replaces no Pods by itself does not act on it.
    """
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") != "OnDelete":  # the administrator's own choice
        return daemon_set
    notes = daemon_set["spec"]["template"]["metadata"].get("annotations") or {}
    own = [pod for pod in pods if pod.daemon_set == daemon_set["metadata"]["name"]]
    new = [pod for pod in own if pod.made_from(notes)]
    most = f"{100 // SHARE}%" if len(new) < len(own) and any(pod.ready for pod in new) else 1
    strategy = {**strategy, "rollingUpdate": {"maxUnavailable": most}}
    return {**daemon_set, "spec": {**daemon_set["spec"], "updateStrategy": strategy}}


def settled(deployment: Obj) -> bool:
    """Whether all Pods of a Deployment are of its present template, and one of them at least works."""
    counts, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    updated = counts.get("updatedReplicas") or 0
    alone = updated >= wanted and (counts.get("replicas") or 0) <= updated
    return bool(observed(deployment) and alone and counts.get("availableReplicas"))


def observed(workload: Obj) -> bool:
    """Whether its controller has acted on the object as it is now."""
    seen = (workload.get("status") or {}).get("observedGeneration") or 0
    return bool(seen >= (workload["metadata"].get("generation") or 0))


def _rollout(fleet: Fleet, name: str, now: datetime) -> Rollout:
    pods = [pod for pod in fleet.pods if pod.daemon_set == name]
    new = [pod for pod in pods if _up_to_date(fleet, pod) and not pod.ending]
    up = [pod for pod in new if pod.node not in fleet.down]
    missing = max(0, desired(fleet.sets[name]) - len(pods))
    return Rollout(
        updated=len(new),
        outdated=sum(not _up_to_date(fleet, pod) for pod in pods),
        starting=missing + sum(pod.starting(now) for pod in up),
        failure=next((trouble for pod in up if (trouble := pod.trouble(now))), ""),
        tried=any(pod.ready for pod in up),
    )


def _outdated(fleet: Fleet) -> list[Change]:
    moving = {change.pod.metadata.name for change in fleet.moves}
    return [
        Change(pod, pod.daemon_set)
        for pod in fleet.up()
        if pod.daemon_set in fleet.sets and not _up_to_date(fleet, pod)
        if not pod.ending and pod.metadata.name not in moving
    ]


def _failure(rollouts: Mapping[str, Rollout], changes: Sequence[Change], proving: Proving) -> tuple[str, str] | None:
    """Trouble of a handler that is new, and not only of its node: then others of its kind work."""
    coming = {change.successor for change in changes}
    for name, rollout in sorted(rollouts.items()):
        if changes and rollout.failure and (not rollout.tried or name in coming):
            return CANARY_FAILED, f"the roll-out is stopped, as {name} does not come up: {rollout.failure}"
    if proving.failure:
        return IMAGE_UNPROVEN, f"the roll-out is stopped: {proving.failure}"
    return None


def _tried(fleet: Fleet, rollouts: Mapping[str, Rollout], changes: Iterable[Change]) -> bool:
    """Whether all handlers that are to come, or are about to, are known to work."""
    coming = {change.successor for change in changes} | {pod.daemon_set for pod in fleet.up() if pod.ending}
    return all(rollout.tried for name, rollout in rollouts.items() if rollout.starting or name in coming)


def _proven(fleet: Fleet, change: Change, proving: Proving) -> bool:
    """Whether a handler may go: what its DaemonSet makes in its place is what it should be, and works there."""
    successor = fleet.sets[change.successor]
    if change.successor in fleet.unfinished or not observed(successor):
        return False
    return proving.proven(successor, change.node, change.pod)


def _up_to_date(fleet: Fleet, pod: HandlerPod) -> bool:
    return pod.made_from(fleet.sets[pod.daemon_set]["spec"]["template"]["metadata"].get("annotations") or {})


def desired(daemon_set: Obj) -> int:
    """On how many nodes a DaemonSet should have a Pod, by its controller's word."""
    return int((daemon_set.get("status") or {}).get("desiredNumberScheduled") or 0)
