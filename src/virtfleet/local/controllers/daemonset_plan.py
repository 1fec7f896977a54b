"""Which pods of a daemon set to create and to delete next: pure decisions over nodes and pods.

`keep_one_per_node` brings every node that should run the daemon to exactly one pod; when it has nothing left to do,
`update` replaces pods of older revisions as far as the strategy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.nodes import NOT_READY, UNREACHABLE, UNSCHEDULABLE, NodeView
from virtfleet.local.controllers.pods import Pod, Template
from virtfleet.local.controllers.rollout import Amount, scaled

REVISION = "controller-revision-hash"
NAME_FIELD = "metadata.name"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a node should get a pod of the daemon, and whether one that is there may stay."""

    run: bool
    stay: bool


@dataclass(slots=True)
class Plan:
    """What to do: nodes that get a pod, pods that go. `finished` pods are among the latter."""

    create: list[str] = field(default_factory=list)
    delete: list[Pod] = field(default_factory=list)
    finished: list[Pod] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.create or self.delete)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The update strategy, with the numbers worked out for the nodes there are."""

    rolling: bool
    unavailable: int

    @classmethod
    def of(cls, spec: Mapping[str, Any], desired: int) -> Strategy:
        strategy = spec.get("updateStrategy") or {}
        limits: Mapping[str, Amount] = strategy.get("rollingUpdate") or {}
        unavailable = scaled(limits.get("maxUnavailable", 1), desired, up=True)
        # Nothing allowed at all would block every update.
        return cls(strategy.get("type", "RollingUpdate") == "RollingUpdate", max(unavailable, 1))


def tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The template's tolerations and those that every daemon pod has: daemons outlive a node's troubles."""
    keys = [(NOT_READY, "NoExecute"), (UNREACHABLE, "NoExecute"), (UNSCHEDULABLE, "NoSchedule")]
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in keys]
    return [*(t for t in spec.get("tolerations") or () if t not in added), *added]


def pinned(affinity: Mapping[str, Any] | None, node: str) -> dict[str, Any]:
    """The affinity with its required node terms replaced by the one node that the pod is for."""
    only = {"nodeSelectorTerms": [{"matchFields": [{"key": NAME_FIELD, "operator": "In", "values": [node]}]}]}
    node_affinity = (affinity or {}).get("nodeAffinity") or {}
    return {**(affinity or {}), "nodeAffinity": {**node_affinity, REQUIRED: only}}


def target(pod: Pod) -> str:
    """The node that a daemon pod is for, whether it is bound already or only pinned."""
    if pod.node:
        return pod.node
    required = (pod.template.affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for f in term.get("matchFields") or ():
            if f.get("key") == NAME_FIELD and f.get("operator") == "In" and len(f.get("values") or ()) == 1:
                return str(f["values"][0])
    return ""


def verdict(node: NodeView, template: Template) -> Verdict:
    """What becomes of the daemon on a node. `template` has the daemon's tolerations."""
    if not node.admits(template):
        return Verdict(run=False, stay=False)
    if node.untolerated(template.tolerations, "NoSchedule", "NoExecute"):
        return Verdict(run=False, stay=not node.untolerated(template.tolerations, "NoExecute"))
    return Verdict(run=True, stay=True)


def oldest_first(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda p: (not p.node, p.created, p.name))


def by_node(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """The daemon's pods by the node they are for; pods that are finished and on their way out count no more."""
    there: dict[str, list[Pod]] = {}
    for pod in pods:
        if not (pod.terminal and pod.deleting is not None):
            there.setdefault(target(pod), []).append(pod)
    return there


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon set as the plans see it."""

    revision: str
    strategy: Strategy
    min_ready_seconds: int
    verdicts: Mapping[str, Verdict]  # by node
    pods: Mapping[str, list[Pod]]  # by node
    now: float

    def updated(self, pod: Pod) -> bool:
        return pod.labels.get(REVISION) == self.revision

    def available(self, pod: Pod) -> bool:
        return pod.available(self.min_ready_seconds, self.now)

    def status(self) -> Obj:
        """The numbers of the daemon set's status."""
        desired = current = misscheduled = ready = available = updated = 0
        for node, wanted in self.verdicts.items():
            there = oldest_first(self.pods.get(node, ()))
            if not wanted.run:
                misscheduled += bool(there)
                continue
            desired += 1
            if there:
                current += 1
                ready += there[0].ready
                available += self.available(there[0])
                updated += self.updated(there[0])
        return {
            "desiredNumberScheduled": desired,
            "currentNumberScheduled": current,
            "numberMisscheduled": misscheduled,
            "numberReady": ready,
            "numberAvailable": available,
            "numberUnavailable": desired - available,
            "updatedNumberScheduled": updated,
        }


def keep_one_per_node(daemon: Daemon, may_retry: Callable[[Pod], bool]) -> Plan:
    """One pod on every node that verdicts it, none elsewhere. Failed pods are replaced when `may_retry` says so."""
    plan = Plan()
    for node, wanted in daemon.verdicts.items():
        there = daemon.pods.get(node, [])
        if not wanted.stay:
            plan.delete += [p for p in there if p.deleting is None]
        elif wanted.run and not there:
            plan.create.append(node)
        else:
            due = [p for p in there if p.terminal and p.deleting is None and (p.phase == "Succeeded" or may_retry(p))]
            plan.finished += due
            plan.delete += due + oldest_first(p for p in there if p.active)[1:]
    gone = [pods for node, pods in daemon.pods.items() if node not in daemon.verdicts]
    # Pods that were bound go with their node; nobody else deletes those that never were.
    plan.delete += [p for pods in gone for p in pods if not p.node and p.deleting is None]
    return plan


def update(daemon: Daemon) -> Plan:
    """The next step of a rolling update: delete old pods while no more than maxUnavailable nodes are without an
    available one."""
    if not daemon.strategy.rolling:
        return Plan()
    unavailable = 0
    broken, healthy = [], []
    for node in sorted(daemon.verdicts):
        there = [p for p in daemon.pods.get(node, ()) if p.deleting is None]
        old, new = [p for p in there if not daemon.updated(p)], [p for p in there if daemon.updated(p)]
        if not daemon.verdicts[node].run and not old and not new:
            continue
        if len(old) == 1 and not new:
            if daemon.available(old[0]):
                healthy.append(old[0])
            else:
                broken.append(old[0])
                unavailable += 1
        elif not (len(new) == 1 and not old and daemon.available(new[0])):
            unavailable += 1
    allowed = max(daemon.strategy.unavailable - unavailable, 0)
    return Plan(delete=broken + healthy[:allowed])
