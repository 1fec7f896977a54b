"""DaemonSets: one pod on every node that the template fits, rolled from one template to the next.

Pods carry the hash of the template that they were made from as a label. Earlier templates are not kept. What to do next
is decided by pure functions: `settle` brings every node that should run the daemon to exactly one pod; when it has
nothing left to do, `outdated` names pods of older templates to replace.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import DAEMON_SETS, Obj
from virtfleet.local.controllers.caches import Caches, PodControl, about
from virtfleet.local.controllers.deployment import scaled
from virtfleet.local.controllers.nodes import NOT_READY, REQUIRED, UNREACHABLE, UNSCHEDULABLE, NodeView
from virtfleet.local.controllers.pods import Pod, Template, owners_of, pod_from_template, template_hash, template_of

REVISION = "controller-revision-hash"
NAME_FIELD = "metadata.name"
RETRY = 10.0  # seconds after its creation that a failed pod is replaced: a node that refuses all is not flooded

# What becomes of the daemon on a node: it should run there, it may stay where it runs already, or it has to leave.
RUN, STAY, LEAVE = "run", "stay", "leave"


def tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The template's tolerations and those that every daemon pod has: daemons outlive a node's troubles."""
    keys = {NOT_READY: "NoExecute", UNREACHABLE: "NoExecute", UNSCHEDULABLE: "NoSchedule"}
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in keys.items()]
    return [*(t for t in spec.get("tolerations") or () if t not in added), *added]


def pinned(affinity: Mapping[str, Any] | None, node: str) -> dict[str, Any]:
    """The affinity with its required node terms replaced by the one node that the pod is for."""
    only = {"nodeSelectorTerms": [{"matchFields": [{"key": NAME_FIELD, "operator": "In", "values": [node]}]}]}
    node_affinity = (affinity or {}).get("nodeAffinity") or {}
    return {**(affinity or {}), "nodeAffinity": {**node_affinity, REQUIRED: only}}


def target(pod: Pod) -> str:
    """The node that a daemon pod is for, whether it is bound already or only pinned."""
    required = (pod.template.affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    fields = [field for term in terms for field in term.get("matchFields") or () if field["key"] == NAME_FIELD]
    return pod.node or (str(fields[0]["values"][0]) if fields else "")


def verdict(node: NodeView, template: Template) -> str:
    """RUN, STAY or LEAVE. `template` has the daemon's tolerations."""
    if not node.admits(template) or node.untolerated(template.tolerations, "NoExecute"):
        return LEAVE
    return STAY if node.untolerated(template.tolerations, "NoSchedule") else RUN


def replaceable(spec: Mapping[str, Any], desired: int) -> int:
    """On how many nodes an update may end the daemon at once; on none where people replace pods themselves."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return 0
    # Nothing allowed at all would block every update.
    return max(scaled((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), desired, up=True), 1)


def by_node(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """The daemon's pods by the node they are for, bound and older ones first.

    Pods that are finished and on their way out count no more.
    """
    there: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda p: (not p.node, p.created, p.name)):
        if not (pod.terminal and pod.deleting is not None):
            there.setdefault(target(pod), []).append(pod)
    return there


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon set as the decisions see it."""

    revision: str
    replaceable: int
    verdicts: Mapping[str, str]  # by node
    pods: Mapping[str, list[Pod]]  # by node
    now: float

    def updated(self, pod: Pod) -> bool:
        return pod.labels.get(REVISION) == self.revision

    def status(self) -> Obj:
        """The numbers of the daemon set's status."""
        wanted = {node for node, verdict in self.verdicts.items() if verdict == RUN}
        first = [pods[0] for node, pods in self.pods.items() if node in wanted]
        ready = sum(pod.ready for pod in first)
        return {
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(first),
            "numberMisscheduled": sum(node in self.verdicts and node not in wanted for node in self.pods),
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": len(wanted) - ready,
            "updatedNumberScheduled": sum(map(self.updated, first)),
        }

    def wait(self) -> float | None:
        """When to look again though nothing happens: for a failed pod that may be replaced."""
        there = [pod for node, pods in self.pods.items() if node in self.verdicts for pod in pods]
        failed = [pod.created for pod in there if pod.phase == "Failed" and pod.deleting is None]
        return max(min(failed) + RETRY - self.now, 0.1) if failed else None


def settle(daemon: Daemon) -> tuple[list[str], list[Pod]]:
    """Nodes that get a pod and pods that go: one on every node that should run the daemon, none elsewhere."""
    create = [node for node, verdict in daemon.verdicts.items() if verdict == RUN and node not in daemon.pods]
    delete: list[Pod] = []
    for node, pods in daemon.pods.items():
        there = [pod for pod in pods if pod.deleting is None]
        if node not in daemon.verdicts:
            # Pods that were bound go with their node; nobody else deletes those that never were.
            delete += [pod for pod in there if not pod.node]
        elif daemon.verdicts[node] == LEAVE:
            delete += there
        else:
            finished = [pod for pod in there if pod.terminal]
            delete += [pod for pod in finished if pod.phase == "Succeeded" or pod.created + RETRY <= daemon.now]
            delete += [pod for pod in there if pod not in finished][1:]
    return create, delete


def outdated(daemon: Daemon) -> list[Pod]:
    """The next step of a rolling update: old pods that may go, so that not too many nodes are without a ready one."""
    if not daemon.replaceable:
        return []
    unavailable, broken, healthy = 0, list[Pod](), list[Pod]()
    for node in sorted(daemon.verdicts):
        there = [pod for pod in daemon.pods.get(node, ()) if pod.deleting is None]
        if daemon.verdicts[node] != RUN and not there:
            continue
        good = len(there) == 1 and there[0].ready
        unavailable += not good
        if len(there) == 1 and not daemon.updated(there[0]):
            (healthy if good else broken).append(there[0])
    return broken + healthy[: max(daemon.replaceable - unavailable, 0)]


class DaemonSets:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._daemons, self._pods, self._nodes = caches.daemon_sets, caches.pods, caches.nodes
        self._control = PodControl(caches, "daemonset-controller", DAEMON_SETS)
        self.controller = Controller("daemonset", self.reconcile, [self._nodes], workers=2)
        self.controller.follow(self._daemons)
        self.controller.follow(self._pods, owners_of("DaemonSet"))
        self._nodes.on_change(self._node_changed)

    def _node_changed(self, _name: str, old: NodeView | None, new: NodeView | None) -> None:
        """Only what daemons look at matters; heartbeats do not."""
        if old and new and (old.labels, old.taints) == (new.labels, new.taints):
            return
        for key in self._daemons.keys():  # noqa: SIM118 (a cache is no dict)
            self.controller.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Place and update pods, say how it stands."""
        daemon_set = self._daemons.get(key)
        if daemon_set is None or daemon_set["metadata"].get("deletionTimestamp"):
            return None
        daemon = self._daemon(daemon_set)
        create, delete = settle(daemon)
        if not create and not delete:
            delete = outdated(daemon)
        for pod in (pod for pod in delete if pod.phase == "Failed"):
            message = f"Found failed daemon pod {pod.key} on node {pod.node}, will try to kill it"
            self._control.recorder.warning(about(daemon_set, DAEMON_SETS), "FailedDaemonPod", message)
        await self._control.create(daemon_set, [_pod(daemon_set, daemon.revision, node) for node in create])
        await self._control.delete(daemon_set, delete)
        daemon = self._daemon(daemon_set)  # the pods are read again: what was just created or deleted counts already
        generation = daemon_set["metadata"].get("generation", 0)
        await self._daemons.write_status(daemon_set, {**daemon.status(), "observedGeneration": generation})
        return daemon.wait()

    def _daemon(self, daemon_set: Obj) -> Daemon:
        spec = daemon_set["spec"]
        pod_spec = spec["template"]["spec"]
        template = template_of({**spec["template"], "spec": {**pod_spec, "tolerations": tolerations(pod_spec)}})
        verdicts = {node.name: verdict(node, template) for node in self._nodes.list()}
        return Daemon(
            revision=template_hash(spec["template"]),
            replaceable=replaceable(spec, sum(verdict == RUN for verdict in verdicts.values())),
            verdicts=verdicts,
            pods=by_node(self._pods.by_index("owner", daemon_set["metadata"]["uid"])),
            now=time.time(),
        )


def _pod(daemon_set: Obj, revision: str, node: str) -> Obj:
    """The daemon's pod for one node."""
    template = daemon_set["spec"]["template"]
    spec = template["spec"]
    pod = pod_from_template(template, daemon_set, DAEMON_SETS)
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), REVISION: revision}
    pod["spec"] = {**spec, "affinity": pinned(spec.get("affinity"), node), "tolerations": tolerations(spec)}
    return pod
