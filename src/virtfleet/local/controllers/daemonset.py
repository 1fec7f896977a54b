"""DaemonSets: one pod on every node that the template fits, rolled from one template to the next.

Pods carry the hash of the template that they were made from as a label. Earlier templates are not kept.
"""

from __future__ import annotations

import time
from functools import partial

from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import DAEMON_SETS, Obj
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.collection import about
from virtfleet.local.controllers.daemonset_plan import (
    REVISION,
    Daemon,
    Plan,
    Strategy,
    by_node,
    keep_one_per_node,
    pinned,
    tolerations,
    update,
    verdict,
)
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.podcontrol import BURST, PodControl
from virtfleet.local.controllers.pods import Pod, owners_of, pod_from_template, template_of, until_available
from virtfleet.local.controllers.revisions import template_hash
from virtfleet.work.pacing import Backoff

FIRST_RETRY, LAST_RETRY = 1.0, 900.0  # seconds between deletions of failed pods on one node


class DaemonSets:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._daemons, self._pods, self._nodes = caches.daemon_sets, caches.pods, caches.nodes
        self._control = PodControl(caches, "daemonset-controller", DAEMON_SETS)
        # Of each daemon's template and node: when its next failed pod may be replaced. A node that refuses the daemon
        # must not be flooded with new ones.
        self._retries: dict[tuple[str, int, str], tuple[Backoff, float]] = {}
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
        retry_after: list[float] = []
        plan = keep_one_per_node(daemon, partial(self._may_retry, daemon_set, daemon.now, retry_after))
        await self._carry_out(daemon_set, daemon.revision, plan or update(daemon))
        daemon = self._daemon(daemon_set)  # the pods are read again: what was just created or deleted counts already
        generation = daemon_set["metadata"].get("generation", 0)
        await self._daemons.write_status(daemon_set, {**daemon.status(), "observedGeneration": generation})
        there = [pod for pods in daemon.pods.values() for pod in pods]
        young = until_available(there, daemon.min_ready_seconds, daemon.now)
        return min([*retry_after, *([] if young is None else [young])], default=None)

    def _daemon(self, daemon_set: Obj) -> Daemon:
        spec = daemon_set["spec"]
        pod_spec = spec["template"]["spec"]
        template = template_of({**spec["template"], "spec": {**pod_spec, "tolerations": tolerations(pod_spec)}})
        verdicts = {node.name: verdict(node, template) for node in self._nodes.list()}
        return Daemon(
            revision=template_hash(spec["template"], 0),
            strategy=Strategy.of(spec, sum(v.run for v in verdicts.values())),
            min_ready_seconds=spec.get("minReadySeconds") or 0,
            verdicts=verdicts,
            pods=by_node(self._pods.by_index("owner", daemon_set["metadata"]["uid"])),
            now=time.time(),
        )

    def _may_retry(self, daemon_set: Obj, now: float, retry_after: list[float], pod: Pod) -> bool:
        key = (daemon_set["metadata"]["uid"], daemon_set["metadata"].get("generation", 0), pod.node)
        backoff, due = self._retries.get(key, (None, 0.0))
        if due > now:
            retry_after.append(due - now)
            return False
        if backoff is None or now > due + LAST_RETRY:
            backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        self._retries[key] = backoff, now + backoff.next()
        return True

    async def _carry_out(self, daemon_set: Obj, revision: str, plan: Plan) -> None:
        for pod in plan.finished:
            if pod.phase == "Failed":
                message = f"Found failed daemon pod {pod.key} on node {pod.node}, will try to kill it"
                self._control.recorder.warning(about(daemon_set, DAEMON_SETS), "FailedDaemonPod", message)
        await self._control.create(daemon_set, [_pod(daemon_set, revision, node) for node in plan.create[:BURST]])
        await self._control.delete(daemon_set, plan.delete)


def _pod(daemon_set: Obj, revision: str, node: str) -> Obj:
    """The daemon's pod for one node."""
    template = daemon_set["spec"]["template"]
    spec = template["spec"]
    pod = pod_from_template(template, daemon_set, DAEMON_SETS)
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), REVISION: revision}
    pod["spec"] = {**spec, "affinity": pinned(spec.get("affinity"), node), "tolerations": tolerations(spec)}
    return pod
