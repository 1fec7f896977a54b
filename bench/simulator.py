"""A cluster for virt-controller alone: a real API server; nodes, kubelets and handlers that pretend.

Nothing runs here. A simulated kubelet says at once that a launcher Pod runs, a simulated handler that its guest does,
so that all time that passes is the controller's and the API server's. Figures from it are figures of a simulation.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from virtfleet.admission.review import complete
from virtfleet.admission.updates import Requester
from virtfleet.api import conditions, crds, names, times
from virtfleet.api.migration import VirtualMachineInstanceMigrationState
from virtfleet.api.names import Phase, VMICondition
from virtfleet.controller import lifecycle
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.pods import launcher_cache
from virtfleet.controller.records.instance import Instance, decode_instance
from virtfleet.handler.node import heartbeat
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CRDS, KUBEVIRTS, LEASES, NAMESPACES, NODES, PODS, VMIS, Obj, Resource
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.controllers.podposts import bind

NAMESPACE = "default"
WORKERS = 16
_LABELS = (names.SCHEDULABLE, names.IMAGE_VOLUMES)
NODE_LEASES = "kube-node-lease"
LEASE_PERIOD = 20.0  # nodes count as silent after 40 s


class Defaults:
    """What the gateway does to new objects, without the gateway."""

    def __init__(self, kubevirt: Obj) -> None:
        self._settings = Installation(kubevirt)
        # Everybody here is one user of the API server; what a controller begins a status with must stay.
        self._user = Requester(min(self._settings.service_accounts))

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        if request.operation == "CREATE" and request.obj and request.kind.resource.group == names.GROUP:
            return complete(request.obj, self._settings, self._user)[0]
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        return None


class CountingApi(InProcessApi):
    """Counts writes by verb and resource; who uses it is whose writes they are."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self.writes: Counter[tuple[str, str]] = Counter()

    async def create(self, res: Resource, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        self.writes["create", res.plural] += 1
        return await super().create(res, obj, namespace, **how)

    async def replace(self, res: Resource, obj: Obj, **how: Any) -> Obj:
        self.writes["update", res.plural] += 1
        return await super().replace(res, obj, **how)

    async def patch(self, res: Resource, name: str, patch: Any, namespace: str | None = None, **how: Any) -> Obj:
        self.writes["patch", res.plural] += 1
        return await super().patch(res, name, patch, namespace, **how)

    async def delete(self, res: Resource, name: str, namespace: str | None = None, **how: Any) -> Obj:
        self.writes["delete", res.plural] += 1
        return await super().delete(res, name, namespace, **how)


class _Agents:
    """Workers that look at an object whenever it changes."""

    def __init__(self, cache: Cache[Any]) -> None:
        self._cache = cache
        self._work: asyncio.Queue[str] = asyncio.Queue()
        cache.on_change(lambda key, old, new: self._work.put_nowait(key))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cache.run())
            for _ in range(WORKERS):
                group.create_task(self._serve())

    def look_again(self) -> None:
        for key in self._cache.keys():  # noqa: SIM118 (a cache is no dict)
            self._work.put_nowait(key)

    async def _serve(self) -> None:
        while True:
            seen = self._cache.get(await self._work.get())
            try:
                if seen is not None:
                    await self._act(seen)
            except ApiError as error:
                if error.code not in (404, 409):  # gone, or changed meanwhile: another event follows
                    raise

    async def _act(self, seen: Any) -> None:
        raise NotImplementedError


class Kubelets(_Agents):
    """Scheduler and all nodes' agents in one. `place` says where a Pod goes, "" for nowhere yet."""

    def __init__(self, api: KubeApi, nodes: list[str]) -> None:
        super().__init__(launcher_cache(api))
        self._api = api
        turns = itertools.cycle(nodes)
        # As anti-affinity has it, a VMI's second Pod goes to another node than the first.
        self.place: Callable[[LauncherPod], str] = lambda pod: next(n for n in turns if n not in self._taken(pod))
        self.lets_run: Callable[[LauncherPod], bool] = lambda pod: True
        self.lets_go: Callable[[LauncherPod], bool] = lambda pod: True
        self._addresses = itertools.count(1)

    def _taken(self, pod: LauncherPod) -> set[str]:
        owner = pod.controller
        return {other.node for other in self._cache.by_index("owner", owner.uid)} if owner else set()

    async def _act(self, pod: LauncherPod) -> None:
        if pod.deleting:
            if self.lets_go(pod):
                await self._api.delete(PODS, pod.name, pod.namespace, grace=0, uid=pod.uid)
        elif not pod.node:
            if node := self.place(pod):
                binding = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": {"kind": "Node", "name": node}}
                await self._api.create(PODS, binding, pod.namespace, name=pod.name, subresource="binding")
        elif pod.status.phase == "Pending" and self.lets_run(pod):
            await self.report(pod, running_status(next(self._addresses)))

    async def report(self, pod: LauncherPod, status: Obj) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        await self._api.patch(PODS, pod.name, patch, pod.namespace, how=Patch.STRATEGIC, subresource="status")


def running_status(number: int = 1, *, ready: bool = True) -> Obj:
    """The status of a launcher Pod that runs."""
    since = times.timestamp()
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}],
        "containerStatuses": [
            {
                "name": "compute",
                "ready": ready,
                "started": True,
                "restartCount": 0,
                "image": "launcher",
                "imageID": "launcher",
                "state": {"running": {"startedAt": since}},
            }
        ],
    }


class Handlers(_Agents):
    """The handlers of all nodes. One write for a guest that runs, one for a guest that has ended.

    Of a migration they play both sides, one write for each step: `prepare`, `start`, `arrive`, and `abort`.
    """

    def __init__(self, api: KubeApi) -> None:
        super().__init__(Cache(api, VMIS, labels=names.NODE_NAME, decode=decode_instance))
        self._api = api
        self.lets_run: Callable[[Instance], bool] = lambda vmi: True
        self.on_running: Callable[[str], None] = lambda key: None  # told the VMI's key
        self.lets_move: Callable[[Instance, str], bool] = lambda vmi, step: True

    async def _act(self, vmi: Instance) -> None:
        if vmi.phase == Phase.SCHEDULED and not vmi.deleting and self.lets_run(vmi):
            # With a guest that has no readiness probe of its own, running is being ready.
            movable = conditions.put(vmi.status.conditions, VMICondition.LIVE_MIGRATABLE, "True", time.time())
            ready = conditions.put(movable, VMICondition.READY, "True", time.time())
            await self._write(vmi, Phase.RUNNING, {"conditions": ready})
            self.on_running(vmi.key)
        elif vmi.deleting and vmi.phase in (Phase.SCHEDULED, Phase.RUNNING):
            await self.end(vmi, Phase.SUCCEEDED)
        elif state := vmi.open_migration:
            step = self._step(state)
            if self.lets_move(vmi, step):
                await self.move(vmi, step)

    @staticmethod
    def _step(state: VirtualMachineInstanceMigrationState) -> str:
        if not state.target_node_address:
            return "prepare"
        if state.abort_requested:
            return "abort"
        return "arrive" if state.start_timestamp else "start"

    async def move(self, vmi: Instance, step: str) -> None:
        """What a handler writes at a step of a migration."""
        state, now = vmi.status.migration_state, times.timestamp()
        assert state
        labels, status = {}, {}
        if step == "prepare":
            change: Obj = {"targetNodeAddress": "10.0.0.1", "targetDirectMigrationNodePorts": {"40000": 49152}}
        elif step == "start":
            change = {"startTimestamp": now, "mode": "PreCopy"}
        elif step == "abort":
            change = {"abortStatus": "Succeeded", "failed": True, "failureReason": "aborted", "endTimestamp": now}
        else:
            change = {"completed": True, "endTimestamp": now, "targetNodeDomainReadyTimestamp": now}
            labels = {names.NODE_NAME: state.target_node}
            status = {"nodeName": state.target_node, "evacuationNodeName": None}
            if vmi.status.migrated_volumes:
                left = conditions.drop(vmi.status.conditions, VMICondition.VOLUMES_CHANGE)
                status |= {"migratedVolumes": None, "conditions": left}
        patch = {
            "metadata": {"resourceVersion": vmi.metadata.resource_version, "labels": labels},
            "status": {**status, "migrationState": change},
        }
        await self._api.patch(VMIS, vmi.name, patch, vmi.namespace)

    async def end(self, vmi: Instance, phase: str) -> None:
        await self._write(vmi, phase, {})

    async def _write(self, vmi: Instance, phase: str, status: Obj) -> None:
        entered = lifecycle.entered(vmi, phase, "", time.time())
        patch = {
            "metadata": {"resourceVersion": vmi.metadata.resource_version},
            "status": {**entered, **status},
        }
        await self._api.patch(VMIS, vmi.name, patch, vmi.namespace)


class SignsOfLife:
    """What the kubelets and handlers of nodes write while nothing happens: leases, and heartbeats on the Node."""

    def __init__(self, api: KubeApi, nodes: list[str]) -> None:
        self._api, self._nodes = api, nodes

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._nodes:
                group.create_task(self._renew(name))
                group.create_task(self._beat(name))

    async def _renew(self, name: str) -> None:
        lease: Obj = {"metadata": {"name": name, "namespace": NODE_LEASES}, "spec": {"holderIdentity": name}}
        await asyncio.sleep(random.uniform(0, LEASE_PERIOD))
        lease = await self._api.create(LEASES, lease)
        while True:
            lease["spec"]["renewTime"] = times.precise_now()
            lease = await self._api.replace(LEASES, lease)
            await asyncio.sleep(LEASE_PERIOD)

    async def _beat(self, name: str) -> None:
        while True:
            await asyncio.sleep(random.uniform(*heartbeat.PERIOD))
            await self._api.patch(NODES, name, heartbeat.sign(True, False, time.time()))


class Simulation:
    """The cluster: an API for each of its parts, so that writes can be told apart."""

    def __init__(self, operations: Operations, nodes: list[str]) -> None:
        self.operations = operations
        self.nodes = nodes
        self.api = InProcessApi(operations)
        self.handler_api = CountingApi(operations)
        self.kubelets = Kubelets(InProcessApi(operations), nodes)
        self.handlers = Handlers(self.handler_api)

    def controller_api(self) -> CountingApi:
        return CountingApi(self.operations)


def node(name: str) -> Obj:
    """A Node whose kubelet and handler are there."""
    since = times.timestamp()
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": since, "lastTransitionTime": since}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **dict.fromkeys(_LABELS, "true")}},
        "status": {"conditions": [ready]},
    }


@asynccontextmanager
async def simulation(directory: Path, *, nodes: int = 3, kubevirt: Obj | None = None) -> AsyncIterator[Simulation]:
    """A cluster with VirtFleet's kinds, nodes, kubelets and handlers, but without a controller.

    A store that has the kinds already is taken as it is.
    """
    store, kinds = Store(directory), Kinds()
    builtin.register(kinds, store)
    kubevirt = kubevirt or {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": {}}
    operations = Operations(store, kinds, Defaults(kubevirt))
    custom = CustomKinds(kinds, operations)
    custom.load()
    made = Simulation(operations, [f"node{i}" for i in range(nodes)])
    operations.posts["", "pods", "binding"] = partial(bind, made.api)
    if store.get("/namespaces", "", NAMESPACE) is None:
        await made.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for definition in crds.definitions():
            await made.api.create(CRDS, definition)
    await made.api.create(KUBEVIRTS, kubevirt)
    for name in made.nodes:
        await made.api.create(NODES, node(name))
    agents = [asyncio.create_task(agent.run()) for agent in (made.kubelets, made.handlers)]
    try:
        yield made
    finally:
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
        await store.close()
