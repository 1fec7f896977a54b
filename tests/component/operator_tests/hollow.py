"""A cluster whose nodes pretend, and an operator that works on it with nothing but the rights of its manifest.

The API server's core, its controllers and RBAC are real. Pods that are bound become Ready, unless `healthy` says
otherwise, and pods that are deleted linger for a moment, as handlers do that drain. `Watchtower` looks at every commit
of a Pod: a node never has two handlers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from component.controllers.local_cluster import Cluster, Kubelets
from virtfleet.kube.api import Page, Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    KUBEVIRTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Obj,
    Resource,
)
from virtfleet.local.apiserver.extensions.admission import Chain
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Change, Store
from virtfleet.local.apiserver.rights.access import Attributes, User
from virtfleet.local.apiserver.rights.escalation import EscalationGuard
from virtfleet.local.apiserver.rights.rbac import Authorizer
from virtfleet.local.apiserver.tables.forms import Plain
from virtfleet.local.controllers.podposts import bind, evict
from virtfleet.local.controllers.pods import Pod
from virtfleet.operator import manifest, standin
from virtfleet.operator.reconcile import Operator
from virtfleet.operator.world import World
from virtfleet.pools.model import owner, pools_of

NAMESPACE = manifest.NAMESPACE
MANIFEST = {
    r.kind: r
    for r in (
        NAMESPACES,
        CRDS,
        PRIORITY_CLASSES,
        SERVICE_ACCOUNTS,
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        ROLES,
        ROLE_BINDINGS,
    )
}
ACCOUNT = User(
    f"system:serviceaccount:{NAMESPACE}:kubevirt-operator",
    ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"),
)


class OperatorsApi(InProcessApi):
    """The API as the operator's service account has it; writes are written down."""

    def __init__(self, operations: Operations, authorizer: Authorizer) -> None:
        super().__init__(operations, ACCOUNT)
        self.operations, self.authorizer = operations, authorizer
        self.writes: list[tuple[str, str, str]] = []

    def _check(
        self, verb: str, res: Resource, namespace: str | None, name: str = "", subresource: str | None = ""
    ) -> None:
        asked = Attributes(
            ACCOUNT,
            verb,
            res.group,
            res.version,
            res.plural,
            subresource or "",
            (namespace or "") if res.namespaced else "",
            name,
        )
        if not self.authorizer(asked):
            raise AssertionError(f"the operator's roles do not allow {verb} {res} {namespace}/{name} {subresource}")
        if verb not in ("get", "list", "watch"):
            self.writes.append((verb, str(res), name))

    async def get(self, res: Resource, name: str, namespace: str | None = None, **more: Any) -> Obj:
        self._check("get", res, namespace, name)
        return await super().get(res, name, namespace, **more)

    async def pages(self, res: Resource, namespace: str | None = None, **more: Any) -> AsyncIterator[Page]:
        """Items are as they are over HTTP, where those of built-in kinds do not say of which kind they are."""
        self._check("list", res, namespace)
        form = Plain(self._kind(res))
        async for page in super().pages(res, namespace, **more):
            yield replace(page, items=[form.item(item) for item in page.items])

    def watch(self, res: Resource, namespace: str | None = None, **more: Any) -> Any:
        self._check("watch", res, namespace)
        return super().watch(res, namespace, **more)

    async def create(self, res: Resource, obj: Obj, namespace: str | None = None, **more: Any) -> Obj:
        self._check("create", res, namespace or obj["metadata"].get("namespace"), obj["metadata"]["name"])
        return await super().create(res, obj, namespace, **more)

    async def patch(self, res: Resource, name: str, patch: Any, namespace: str | None = None, **more: Any) -> Obj:
        self._check("patch", res, namespace, name, more.get("subresource"))
        return await super().patch(res, name, patch, namespace, **more)

    async def delete(self, res: Resource, name: str, namespace: str | None = None, **more: Any) -> Obj:
        self._check("delete", res, namespace, name)
        return await super().delete(res, name, namespace, **more)


class SlowToEnd(Kubelets):
    """Node agents whose pods take a moment to end, and that cannot pull every image. Proofs run to their end."""

    longest = 0.1

    def __init__(self, api: InProcessApi) -> None:
        super().__init__(api)
        self.unpullable: Callable[[str], bool] = lambda image: False
        self.dark: set[str] = set()  # nodes without power
        self.without_image_volumes: set[str] = set()  # nodes whose runtime mounts no images
        self._pulled: set[tuple[str, str]] = set()  # node and image: what is there needs no registry

    async def _act(self, pod: Pod) -> None:
        if pod.node in self.dark:
            return
        if pod.deleting is not None:
            await asyncio.sleep(random.uniform(0, self.longest))
        elif pod.phase == "Succeeded":
            return
        else:
            full = await self._api.get(PODS, pod.name, pod.namespace)
            asked = [*full["spec"].get("initContainers", ()), *full["spec"]["containers"]]
            bad = [c for c in asked if (pod.node, c["image"]) not in self._pulled and self.unpullable(c["image"])]
            if bad and pod.phase != "Running":
                await self._tell(pod, {"phase": "Pending", "containerStatuses": [_waiting(bad[0])]})
                return
            self._pulled |= {(pod.node, c["image"]) for c in asked}
            component = full["metadata"].get("labels", {}).get("kubevirt.io")
            if component == "virt-image-volume-probe" and pod.node in self.without_image_volumes:
                refused = {"reason": "CreateContainerError", "message": 'failed to mkdir ""'}
                look = {"name": "look", "image": "", "imageID": "", "ready": False, "restartCount": 0}
                await self._tell(
                    pod, {"phase": "Pending", "containerStatuses": [{**look, "state": {"waiting": refused}}]}
                )
                return
            if component in ("virt-handler-proof", "virt-image-volume-probe"):
                await self._tell(pod, {"phase": "Succeeded", "containerStatuses": []})
                return
        await super()._act(pod)

    async def _tell(self, pod: Pod, status: Obj) -> None:
        there = (await self._api.get(PODS, pod.name, pod.namespace)).get("status") or {}
        if any(there.get(key) != value for key, value in status.items()):
            patch = {"metadata": {"uid": pod.uid}, "status": {**status, "conditions": []}}
            await self._api.patch(PODS, pod.name, patch, pod.namespace, subresource="status")


def _waiting(container: Obj) -> Obj:
    """What a kubelet says of a container whose image it cannot pull."""
    waiting = {"reason": "ErrImagePull", "message": f'failed to pull image "{container["image"]}"'}
    known = {"image": container["image"], "imageID": "", "ready": False, "restartCount": 0}
    return {"name": container["name"], "state": {"waiting": waiting}, **known}


class Watchtower:
    """Sees every commit of a handler's Pod."""

    def __init__(self, store: Store) -> None:
        self._at: dict[str, str] = {}  # pod -> node
        self._tried: dict[str, set[str]] = {}  # node -> images that have run there
        self._served: set[str] = set()  # handlers that have been ready
        self._left: set[str] = set()  # nodes that have lost one of them
        self.doubles: list[str] = []
        self.unproven: list[str] = []
        """Handlers in whose favour another one was taken away, with images that had never run on the node."""
        self.listen = store.listen
        self.listen("/pods", self._see)

    def _see(self, change: Change) -> None:
        pod = orjson.loads(change.record.data)
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        component = pod["metadata"].get("labels", {}).get("kubevirt.io")
        if component not in ("virt-handler", "virt-handler-proof"):
            return
        if "virtfleet.io/stand-in" in pod["metadata"]["labels"]:
            return
        images = {c["image"] for c in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])}
        status = pod.get("status") or {}
        if status.get("phase") == "Succeeded" or any(
            c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()
        ):
            self._tried.setdefault(node, set()).update(images)
            self._served.add(name)
        if component != "virt-handler":
            return
        if name in self._served and (change.type == "DELETED" or "deletionTimestamp" in pod["metadata"]):
            self._left.add(node)
        if change.type == "DELETED":
            self._at.pop(name, None)
        elif node:
            others = [other for other, where in self._at.items() if where == node and other != name]
            self.doubles += [f"{name} came to {node} while {other} was there" for other in others]
            if name not in self._at and node in self._left:
                self._left.remove(node)
                if new := images - self._tried[node]:
                    self.unproven.append(f"{name} came to {node} with {new}")
            self._at[name] = node

    def handlers(self) -> dict[str, str]:
        """node -> pod"""
        return {node: pod for pod, node in self._at.items()}


class Hollow:
    """The cluster in a test's hands."""

    def __init__(self, cluster: Cluster, kubelets: SlowToEnd, tower: Watchtower, api: OperatorsApi) -> None:
        self.cluster, self.kubelets, self.tower, self.operators_api = cluster, kubelets, tower, api
        self.api = cluster.api
        self.until = cluster.until
        self.time = timedelta()
        self._task: asyncio.Task[None] | None = None

    # -- the operator

    def start_operator(self) -> None:
        world, recorder = World(self.operators_api, NAMESPACE), Recorder(self.operators_api, "virt-operator")
        operator = Operator(self.operators_api, world, recorder, now=lambda: datetime.now(UTC) + self.time)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                for part in (world, recorder, operator):
                    group.create_task(part.run())

        self._task = asyncio.create_task(run())

    async def kill_operator(self) -> None:
        if self._task:
            self._task.cancel()
            [result] = await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            if isinstance(result, Exception):
                raise result

    async def idle_writes(self) -> list[tuple[str, str, str]]:
        """What an operator writes that finds everything as it should be, and the counts told."""
        await self.kill_operator()
        world = World(self.operators_api, NAMESPACE)
        operator = Operator(self.operators_api, world, Recorder(self.operators_api, "virt-operator"))
        watching = asyncio.create_task(world.run())
        for cache in world.needed:
            await cache.synced.wait()
        world.own_kinds_are_served()
        for cache in (world.instances, *world.types.values()):
            await cache.synced.wait()
        for _ in ("tell the last counts", "nothing"):
            self.operators_api.writes.clear()
            await operator.reconcile(f"{NAMESPACE}/kubevirt")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return self.operators_api.writes

    # -- the KubeVirt object

    async def install(self, **spec: Any) -> None:
        kubevirt = {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": spec}
        await self.api.create(KUBEVIRTS, kubevirt)
        await self.condition("Available")

    async def configure(self, **spec: Any) -> Obj:
        """Set fields of the spec; None removes one."""
        return await self.api.patch(KUBEVIRTS, "kubevirt", {"spec": spec}, NAMESPACE)

    async def kubevirt(self) -> Obj:
        return await self.api.get(KUBEVIRTS, "kubevirt", NAMESPACE)

    async def condition(self, kind: str, status: str = "True", **wanted: str) -> Obj:
        """Wait until the condition is there, told for the newest generation."""

        async def check() -> Obj | None:
            kubevirt = await self.kubevirt()
            told = kubevirt.get("status") or {}
            if told.get("observedGeneration") != kubevirt["metadata"]["generation"]:
                return None
            for condition in told.get("conditions") or ():
                if condition["type"] == kind and condition["status"] == status:
                    return condition if wanted.items() <= condition.items() else None
            return None

        found: Obj = await self.until(check)
        return found

    async def event(self, reason: str) -> None:
        """Wait until it is there: events are written beside the work."""

        async def check() -> bool:
            return reason in [event["reason"] for event in await self.api.list(EVENTS, NAMESPACE)]

        await self.until(check)

    async def settled(self) -> Obj:
        """The KubeVirt object once everything is as it says: every node has the handler that it should have, Ready."""

        async def check() -> Obj | None:
            kubevirt = await self.kubevirt()
            assert "conditions" in kubevirt.get("status", {})
            pools = pools_of(kubevirt)
            told = {c["type"]: c["status"] for c in kubevirt["status"]["conditions"]}
            assert kubevirt["status"]["observedGeneration"] == kubevirt["metadata"]["generation"]
            assert told["Progressing"] == told["Degraded"] == "False", told
            owners = {n["metadata"]["name"]: owner(pools, n["metadata"]["labels"]) for n in await self.api.list(NODES)}
            expected = {node: pool.daemon_set if pool else "virt-handler" for node, pool in owners.items()}
            assert await self.owners() == expected
            for daemon_set in await self.api.list(DAEMON_SETS, NAMESPACE):
                wanted = list(expected.values()).count(daemon_set["metadata"]["name"])
                assert daemon_set["status"]["numberReady"] == wanted, daemon_set["status"]
            return kubevirt

        kubevirt: Obj = await self.until(check)
        assert not self.tower.doubles
        return kubevirt

    async def handler(self, node: str) -> Obj:
        return await self.api.get(PODS, self.tower.handlers()[node], NAMESPACE)

    async def owners(self) -> dict[str, str]:
        """node -> DaemonSet of its handler"""
        pods = {node: await self.handler(node) for node in sorted(self.tower.handlers())}
        return {node: pod["metadata"]["ownerReferences"][0]["name"] for node, pod in pods.items()}

    async def keepers(self) -> dict[str, str]:
        """node -> DaemonSet that its label names"""
        labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in await self.api.list(NODES)}
        named = {node: labels[node].get("virtfleet.io/served-by", "nobody") for node in sorted(labels)}
        return {node: "virt-handler" if name == "primary" else name for node, name in named.items()}

    async def label(self, node: str, **labels: str | None) -> None:
        await self.api.patch(NODES, node, {"metadata": {"labels": labels}})

    async def daemon_sets(self) -> list[str]:
        return sorted(ds["metadata"]["name"] for ds in await self.api.list(DAEMON_SETS, NAMESPACE))

    async def deployment(self, name: str) -> Obj:
        return await self.api.get(DEPLOYMENTS, name, NAMESPACE)

    def refuse(self, unpullable: Callable[[str], bool]) -> None:
        """Images that no node can pull from now on."""
        self.kubelets.unpullable = unpullable
        self.kubelets.look_again()

    async def lose_power(self, node: str) -> None:
        self.kubelets.dark.add(node)
        down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await self.api.patch(NODES, node, down, subresource="status")

    def fail(self, unhealthy: Callable[[Pod], bool]) -> None:
        """Of handlers' Pods, those of DaemonSets only: what stands in for them comes up."""
        self.kubelets.healthy = lambda pod: pod.name.startswith(standin.PREFIX) or not unhealthy(pod)

    async def failing_canary(self) -> str:
        """Ask for images whose handlers crash; the answer is the first Pod of them."""
        before = set(self.tower.handlers().values())
        self.fail(lambda pod: pod.name.startswith("virt-handler") and pod.name not in before)
        await self.configure(imageTag="broken")

        async def canary() -> str:
            return next((pod for pod in self.tower.handlers().values() if pod not in before), "")

        failing: str = await self.until(canary)
        await self.crash(failing)
        return failing

    async def crash(self, pod: str) -> None:
        """What a kubelet says of a container that cannot run."""
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
        container = {
            "name": "virt-handler",
            "state": {"waiting": waiting},
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 3,
        }
        patch = {"status": {"containerStatuses": [container]}}
        await self.api.patch(PODS, pod, patch, NAMESPACE, how=Patch.STRATEGIC, subresource="status")


@asynccontextmanager
async def hollow(directory: Path, *, nodes: int = 3) -> AsyncIterator[Hollow]:
    store = Store(directory / "store")
    kinds = Kinds()
    builtin.register(kinds, store)
    authorizer = Authorizer(store)
    operations = Operations(store, kinds, Chain(EscalationGuard(authorizer)))
    custom = CustomKinds(kinds, operations)
    custom.load()
    api = InProcessApi(operations)
    operations.posts["", "pods", "binding"] = partial(bind, api)
    operations.posts["", "pods", "eviction"] = partial(evict, api)
    cluster, kubelets, tower = Cluster(api, kinds, directory), SlowToEnd(api), Watchtower(store)
    cluster.node_grace = 3600.0  # nobody renews the nodes' signs of life
    await api.create(NAMESPACES, {"metadata": {"name": "default"}})
    for obj in manifest.objects():
        if obj["kind"] in MANIFEST:
            await api.create(MANIFEST[obj["kind"]], obj)
    for i in range(nodes):
        await cluster.node(f"node{i}", labels={"kubernetes.io/os": "linux"})
    world = Hollow(cluster, kubelets, tower, OperatorsApi(operations, authorizer))
    agents = [asyncio.create_task(kubelets.run()), asyncio.create_task(custom.controller.run())]
    cluster.start()
    world.start_operator()
    try:
        yield world
    finally:
        try:
            await world.kill_operator()
        finally:
            await cluster.stop()
            for task in agents:
                task.cancel()
            await asyncio.gather(*agents, return_exceptions=True)
            await store.close()


async def missing(api: InProcessApi, resource: Resource, name: str) -> bool:
    try:
        await api.get(resource, name, NAMESPACE)
    except ApiError as error:
        return error.code == 404
    return False
