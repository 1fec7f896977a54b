"""The agent of one node: a worker for each of its pods, what they share, and the node's own object.

Killed at any point and started again, it finds its containers on disk, compares them with the pods that the API
server has for this node, goes on with those that belong together and removes the rest.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import AsyncExitStack
from ipaddress import IPv4Network

from virtfleet.kube.api import KubeApi
from virtfleet.kube.resource import Obj
from virtfleet.local.node import cgroups, mounts, network
from virtfleet.local.node.assembly import NodeParts
from virtfleet.local.node.containers import Container
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.podworker import PodWorker
from virtfleet.local.node.pretend import PretendPlugin
from virtfleet.local.node.runtime import remove_group
from virtfleet.local.node.server import AgentServer
from virtfleet.local.nodesfile import NodeSpec
from virtfleet.work.locks import locked

log = logging.getLogger(__name__)


class Agent:
    """`run()` it; `ready` is set once the node takes pods."""

    def __init__(
        self, layout: Layout, api: KubeApi, net: ClusterNetwork, addresses: IPv4Network, spec: NodeSpec
    ) -> None:
        self._layout, self._network, self._range, self._spec = layout, net, addresses, spec
        layout.create()
        self.node = NodeParts(layout, api, net, addresses, spec, self._ended)
        self.workers: dict[str, PodWorker] = {}  # by pod uid
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Be the node's agent until cancelled. Containers go on without it."""
        async with AsyncExitStack() as stack:
            try:  # two agents of one node would undo each other's work
                stack.enter_context(locked(self._layout.home / "agent.lock", wait=False))
            except BlockingIOError:
                raise RuntimeError(f"another agent runs for node {self._spec.name} in {self._layout.data}") from None
            mounts.share(self._layout.root)
            await network.set_up(self._network, self._range)
            devices = await self.node.devices.start()
            stack.push_async_callback(devices.stop, None)
            stack.push_async_callback(self.node.devices.stop)
            for resource, count in self._spec.devices.items():
                plugin = PretendPlugin(self._layout.kubelet / "device-plugins", resource, count)
                await stack.enter_async_context(plugin.serving())
            stack.callback(self.node.runtime.close)
            adopted = await self.node.runtime.adopt()
            await self.node.object.register()
            await stack.enter_async_context(AgentServer(self._layout, self.node.runtime, self.workers).serving())
            async with asyncio.TaskGroup() as group:
                group.create_task(self.node.pods.run())
                group.create_task(self.node.recorder.run())
                await self.node.pods.synced.wait()
                await self._tidy_up(adopted)
                self.node.pods.on_change(lambda key, old, new: self._changed(old, new, adopted))
                group.create_task(self.node.object.reporting())
                group.create_task(self.node.object.renewing())
                stack.push_async_callback(self._stop_workers)
                group.create_task(self._announce())
                self.ready.set()
                log.info("node %s takes pods", self._spec.name)

    async def _announce(self) -> None:
        await asyncio.gather(*(worker.reported.wait() for worker in list(self.workers.values())))
        await self.node.object.announce()

    async def _tidy_up(self, adopted: list[Container]) -> None:
        """Remove what belongs to no pod of this node any more."""
        wanted = {pod["metadata"]["uid"] for pod in self.node.pods.list()}
        for run in adopted:
            if run.pod not in wanted:
                await self.node.runtime.remove(run)
        await self.node.sandboxes.adopt(wanted)
        self.node.devices.keep_only(wanted)
        for path in (self._layout.kubelet / "pods").iterdir():
            if path.name not in wanted:
                await self.node.volumes.remove(path.name)
        for path in self._layout.logs.iterdir():
            if path.name.rpartition("_")[2] not in wanted:
                shutil.rmtree(path, ignore_errors=True)
        for uid in cgroups.children(self._layout.cgroup) - wanted:
            await remove_group(f"{self._layout.cgroup}/{uid}")

    def _changed(self, old: Obj | None, new: Obj | None, adopted: list[Container]) -> None:
        """A pod of this node came, changed or went."""
        uid = (new or old or {})["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.update(new)
        elif new is not None:
            mine = [run for run in adopted if run.pod == uid]
            worker = self.workers[uid] = PodWorker(self.node, new, mine)
            worker.task.add_done_callback(lambda _: self.workers.pop(uid, None))

    def _ended(self, run: Container) -> None:
        if worker := self.workers.get(run.pod):
            worker.woken.set()

    async def _stop_workers(self) -> None:
        for worker in list(self.workers.values()):
            worker.stop()
        await asyncio.gather(*(w.task for w in list(self.workers.values())), return_exceptions=True)
