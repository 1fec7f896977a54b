"""What all controllers of the local cluster share: the API, one collection of each kind that they read, recorders.

Collections are caches with writes that the very next read sees. A controller that acts on a cache which does not show
its last write yet would create the same pod twice. Kubernetes keeps per-owner "expectations" against that; here every
answer to a write goes into the cache at once (`observe`): a created pod is there, a deleted one is terminating. So
there is nothing to wait for, nothing that can wait forever, and after a restart the first list is complete by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import orjson

from virtfleet.kube import resource as kinds
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache, key_of, split_key
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers import nodes, pods
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.pods import Pod
from virtfleet.work.tasks import all_of

LEASE_NAMESPACE = "kube-node-lease"
SERVICE_NAME = "kubernetes.io/service-name"
BURST = 500  # pods created or deleted in one go

T = TypeVar("T")


class Collection(Cache[T]):
    """The objects of one kind. That one is gone, or has made room for another of its name, is no failure."""

    async def find(self, key: str) -> Obj | None:
        """The object as the server has it now, or None."""
        return await find(self._api, self.resource, key)

    async def patch(
        self, key: str, patch: Obj, *, uid: str = "", how: Patch = Patch.STRATEGIC, subresource: str | None = None
    ) -> Obj | None:
        """The object after the patch, or None if it is gone. With `uid`, a later one of its name is left alone."""
        namespace, name = split_key(key)
        meta = patch.get("metadata") or {}
        patch = {**patch, "metadata": {**meta, "uid": uid}} if uid else patch
        try:
            answer = await self._api.patch(self.resource, name, patch, namespace, how=how, subresource=subresource)
        except Exception as error:
            if is_not_found(error) or (uid and is_conflict(error) and "resourceVersion" not in meta):
                return None
            raise
        self.observe(answer)
        return answer

    async def replace(self, obj: Obj, *, subresource: str | None = None) -> None:
        """Write the object as a whole, unless somebody else has written it meanwhile."""
        self.observe(await self._api.replace(self.resource, obj, subresource=subresource))

    async def release(self, key: str, uid: str, finalizer: str) -> None:
        """Take a finalizer off this very object, and leave those of others."""
        await self.patch(key, {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}, uid=uid)

    async def write_status(self, obj: Obj, status: Obj) -> Obj:
        """The object with these fields in its status; nothing is written where they are so already."""
        if status.items() <= (obj.get("status") or {}).items():
            return obj
        patch = {"status": status}
        return await self.patch(key_of(obj), patch, how=Patch.MERGE, subresource="status") or obj


async def find(api: KubeApi, res: Resource, key: str) -> Obj | None:
    namespace, name = split_key(key)
    with ignoring(is_not_found):
        return await api.get(res, name, namespace)
    return None


def controller_of(obj: Obj) -> dict[str, Any] | None:
    """The reference to the object's controller, if it has one."""
    return next((r for r in obj["metadata"].get("ownerReferences") or () if r.get("controller")), None)


def about(obj: Obj, resource: Resource) -> Reference:
    """The object as events name it; the cached form of an object need not say its kind."""
    meta = obj["metadata"]
    return Reference(resource.api_version, resource.kind, meta.get("namespace", ""), meta["name"], meta["uid"])


def service_of(piece: Obj) -> Iterable[str]:
    """The key of an EndpointSlice's Service."""
    meta = piece["metadata"]
    name = (meta.get("labels") or {}).get(SERVICE_NAME)
    return (f"{meta['namespace']}/{name}",) if name else ()


class Caches:
    """`parts` is what has to run, until it is cancelled."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.parts: list[Collection[Any] | Recorder] = []
        self.pods: Collection[Pod] = self._collection(kinds.PODS, pods.decode, indexes=pods.INDEXES)
        self.nodes: Collection[NodeView] = self._collection(kinds.NODES, nodes.decode)
        self.namespaces = self._collection(kinds.NAMESPACES)
        self.crds = self._collection(kinds.CRDS)
        owner = {"owner": lambda obj: [ref["uid"]] if (ref := controller_of(obj)) else []}
        self.replica_sets = self._collection(kinds.REPLICA_SETS, indexes=owner)
        self.deployments = self._collection(kinds.DEPLOYMENTS)
        self.daemon_sets = self._collection(kinds.DAEMON_SETS)
        self.jobs = self._collection(kinds.JOBS)
        namespace = {"namespace": lambda obj: [obj["metadata"]["namespace"]]}
        self.services = self._collection(kinds.SERVICES, indexes=namespace)
        self.slices = self._collection(kinds.ENDPOINT_SLICES, indexes={"service": service_of})
        self.budgets = self._collection(kinds.POD_DISRUPTION_BUDGETS, indexes=namespace)
        self.claims = self._collection(kinds.PERSISTENT_VOLUME_CLAIMS)
        self.volumes = self._collection(kinds.PERSISTENT_VOLUMES)
        self.classes = self._collection(kinds.STORAGE_CLASSES)
        self.leases = self._collection(kinds.LEASES, namespace=LEASE_NAMESPACE)

    def _collection(
        self, resource: Resource, decode: Callable[[bytes], Any] = orjson.loads, **options: Any
    ) -> Collection[Any]:
        made: Collection[Any] = Collection(self.api, resource, decode=decode, **options)
        self.parts.append(made)
        return made

    def recorder(self, component: str) -> Recorder:
        made = Recorder(self.api, component)
        self.parts.append(made)
        return made


class PodControl:
    """How one workload controller makes and deletes pods: in bounded numbers, with an event on the owner for each."""

    def __init__(self, caches: Caches, component: str, resource: Resource) -> None:
        self._pods, self._resource = caches.pods, resource
        self.recorder = caches.recorder(component)

    async def create(self, owner: Obj, wanted: Sequence[Obj]) -> None:
        """Create pods in batches that double, so that what fails for all of them fails only for a few."""
        event, namespace = about(owner, self._resource), owner["metadata"]["namespace"]
        wanted, batch = wanted[:BURST], 1
        while wanted:
            try:
                made = await all_of(*(self._pods.create(pod, namespace) for pod in wanted[:batch]))
            except ApiError as error:
                self.recorder.warning(event, "FailedCreate", f"Error creating: {error.message}")
                raise
            for each in made:
                self.recorder.normal(event, "SuccessfulCreate", f"Created pod: {each.name}")
            wanted, batch = wanted[batch:], batch * 2

    async def delete(self, owner: Obj, doomed: Sequence[Pod]) -> None:
        """Delete pods."""
        doomed = doomed[:BURST]
        await all_of(*(self._pods.remove(pod.key, pod.uid) for pod in doomed))
        for pod in doomed:
            self.recorder.normal(about(owner, self._resource), "SuccessfulDelete", f"Deleted pod: {pod.name}")
