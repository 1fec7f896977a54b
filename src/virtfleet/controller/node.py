"""Nodes whose handler is silent: no new VMs go there, and those that are lost there are said to be.

A handler writes the time onto its node every minute or two. After five minutes without, the node takes no more VMs. Its
VMIs may well go on running: only those without a living Pod have failed.

What a handler writes is only ever compared with what it wrote before: no clock is compared with another machine's, and
one that jumps silences nobody. So a virt-controller that has just come to lead gives every handler its five minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from virtfleet.api import names
from virtfleet.api.names import Phase
from virtfleet.controller import lifecycle
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_not_found

SILENCE = 300.0
LOOK_AGAIN = 60.0  # how often VMIs on a silent node are looked at
NODE_UNRESPONSIVE = "NodeUnresponsive"


class Heartbeats:
    """When each node's handler was last seen to write something new, by our own clock."""

    def __init__(self, limit: float = SILENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # node -> what was written, when that was new

    def left(self, name: str, node: NodeRecord | None) -> float:
        """Seconds until the handler of a node counts as unresponsive; none where the node is gone.

        A node on which no handler ever wrote is not ours to judge: infinite.
        """
        if node is None:
            self._seen.pop(name, None)
            return 0.0
        written = node.metadata.annotations.heartbeat
        if not written:
            return float("inf")
        before, since = self._seen.get(name, ("", 0.0))
        if written != before:
            since = self._clock()
            self._seen[name] = written, since
        return since + self._limit - self._clock()


def lost(vmi: Instance, pods: Iterable[LauncherPod]) -> bool:
    """Whether a VMI on a silent node has nothing left that could run."""
    return vmi.phase in (Phase.SCHEDULED, Phase.RUNNING) and not any(pod.alive for pod in pods)


class Nodes(Part):
    """The controller."""

    def __init__(self, shared: Shared, silence: float = SILENCE) -> None:
        super().__init__(shared)
        self._heartbeats = Heartbeats(silence)
        self.controller = Controller("node", self.reconcile, [self._pods.cache], workers=4)
        self.controller.follow(self._nodes)
        self.controller.follow(self._instances, lambda vmi: [vmi.status.node_name] if vmi.status.node_name else [])

    async def reconcile(self, key: str) -> float | None:
        """Mark a silent node, and fail what is lost on it."""
        node = self._nodes.get(key)
        left = self._heartbeats.left(key, node)
        if left == float("inf"):
            return None
        if left > 0:
            return left
        if node:
            await self._mark(node)
        vmis = [vmi for vmi in self._instances.by_index("node", key) if not vmi.final]
        for vmi in vmis:
            if lost(vmi, self._pods.of(vmi.uid)) and lost(vmi, await self._pods.listed(vmi)):
                await self._fail(vmi)
        return LOOK_AGAIN if vmis else None

    async def _mark(self, node: NodeRecord) -> None:
        if node.metadata.labels.get(names.SCHEDULABLE) != "true":
            return
        await self._nodes.change(node.name, {"metadata": {"labels": {names.SCHEDULABLE: "false"}}})
        what = "virt-handler is not responsive, marking node as unresponsive"
        self._recorder.warning(node.reference, NODE_UNRESPONSIVE, what)
        for vmi in self._instances.by_index("node", node.name):
            if not vmi.final:
                said = f"virt-handler on node {node.name} is not responsive: this status may be old, and the VM stays"
                self._recorder.warning(vmi.reference, NODE_UNRESPONSIVE, f"{said} there until the node is fenced")

    async def _fail(self, vmi: Instance) -> None:
        with ignoring(is_not_found):
            # A handler that is back after all has written since, and knows better: this write is refused then.
            failed = lifecycle.entered(vmi, Phase.FAILED, NODE_UNRESPONSIVE, time.time())
            await self._patch_instance(vmi, {"status": failed})
            what = f"virt-handler on node {vmi.status.node_name} is not responsive, marking VMI as failed"
            self._recorder.warning(vmi.reference, NODE_UNRESPONSIVE, what)
