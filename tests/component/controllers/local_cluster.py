"""A control plane without its HTTP face: the real store, kinds and rules, the controllers, and nodes that pretend.

`Kubelets` plays the node agents: pods that are bound become Running and Ready (unless told otherwise), and pods that
are deleted go after they were asked to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from virtfleet.api.times import timestamp
from virtfleet.kube.api import Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import NAMESPACES, NODES, PODS, STORAGE_CLASSES, Obj, Resource
from virtfleet.local.apiserver.bootstrap import default_objects
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.controllers import all as controllers
from virtfleet.local.controllers import pods as projections
from virtfleet.local.controllers.podposts import bind, evict
from virtfleet.local.controllers.pods import Pod

DEADLINE = 20.0
PAUSE = 0.02  # seconds between two looks
LOCAL_CLASS = next(obj for res, obj in default_objects() if res is STORAGE_CLASSES)


class Cluster:
    """The API, and controllers that can be stopped and started."""

    def __init__(self, api: InProcessApi, kinds: Kinds, directory: Path) -> None:
        self.api = api
        self.kinds = kinds
        self.volumes = directory / "volumes"
        self.node_grace = 40.0
        self._task: asyncio.Task[None] | None = None
        self._stops = 0

    def start(self) -> None:
        run = controllers.run(self.api, self.kinds, self.volumes, node_grace=self.node_grace)
        self._task = asyncio.create_task(run)

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            # The death of a process ends its writes too, one way or the other; here the store lives on, so wait for
            # those that are on their way: one more write comes after all of them.
            self._stops += 1
            mark = {"metadata": {"annotations": {"stops": str(self._stops)}}}
            await self.api.patch(NAMESPACES, "default", mark)

    async def node(self, name: str, **spec: Any) -> Obj:
        labels = spec.pop("labels", {})
        allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"} | spec.pop("allocatable", {})
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "spec": spec,
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": timestamp()}],
            },
        }
        return await self.api.create(NODES, node)

    async def until(self, condition: Callable[[], Awaitable[Any]], deadline: float = DEADLINE) -> Any:
        """The first truthy answer; whatever was last is shown if it never comes.

        Looks are counted, and not seconds: all that is waited for happens in this process, which has its turn between
        two looks however busy the machine is.
        """
        last: Any = None
        for _ in range(round(deadline / PAUSE)):
            try:
                last = value = await condition()
            except (ApiError, AssertionError) as error:
                last, value = error, None
            if value:
                return value
            await asyncio.sleep(PAUSE)
        raise AssertionError(f"did not come true within {deadline} s; last: {last!r}")

    async def gone(self, resource: Resource, name: str, namespace: str | None = "default") -> None:
        async def check() -> bool:
            try:
                await self.api.get(resource, name, namespace)
            except ApiError as error:
                return error.code == 404
            return False

        await self.until(check)


class Kubelets:
    """All nodes' agents in one."""

    def __init__(self, api: InProcessApi) -> None:
        self._api = api
        self._cache: Cache[Pod] = Cache(api, PODS, decode=projections.decode)
        self._work: asyncio.Queue[str] = asyncio.Queue()
        self._address = 0
        self.healthy: Callable[[Pod], bool] = lambda pod: True
        self.dead: set[str] = set()
        """Nodes whose agent does nothing."""
        self._cache.on_change(lambda key, old, new: self._work.put_nowait(key))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cache.run())
            for _ in range(8):
                group.create_task(self._serve())

    def look_again(self) -> None:
        for key in self._cache.keys():  # noqa: SIM118 (a cache is no dict)
            self._work.put_nowait(key)

    async def _serve(self) -> None:
        while True:
            pod = self._cache.get(await self._work.get())
            if pod is None or not pod.node or pod.node in self.dead:
                continue
            try:
                await self._act(pod)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise

    async def _act(self, pod: Pod) -> None:
        if pod.deleting is not None:
            await self._api.delete(PODS, pod.name, pod.namespace, grace=0, uid=pod.uid)
            return
        ready = self.healthy(pod)
        if pod.terminal or (pod.phase == "Running" and pod.ready == ready):
            return
        self._address += 1
        status = {
            "phase": "Running",
            "podIP": pod.ips[0] if pod.ips else f"10.0.{self._address // 250}.{self._address % 250 + 1}",
            "conditions": [
                {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp()},
            ],
        }
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        await self._api.patch(PODS, pod.name, patch, pod.namespace, how=Patch.STRATEGIC, subresource="status")


@asynccontextmanager
async def local_cluster(directory: Path, *, nodes: int = 3) -> AsyncIterator[tuple[Cluster, Kubelets]]:
    store = Store(directory / "store")
    kinds = Kinds()
    builtin.register(kinds, store)
    operations = Operations(store, kinds)
    api = InProcessApi(operations)
    operations.posts["", "pods", "binding"] = partial(bind, api)
    operations.posts["", "pods", "eviction"] = partial(evict, api)
    cluster, kubelets = Cluster(api, kinds, directory), Kubelets(api)
    await api.create(NAMESPACES, {"metadata": {"name": "default"}})
    for i in range(nodes):
        await cluster.node(f"node{i}")
    agents = asyncio.create_task(kubelets.run())
    cluster.start()
    try:
        yield cluster, kubelets
    finally:
        await cluster.stop()
        agents.cancel()
        await asyncio.gather(agents, return_exceptions=True)
        await store.close()
