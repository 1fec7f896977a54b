"""What the operator sees of the cluster, kept up to date by watches: at rest it asks the API server nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import orjson

from virtfleet.api import names
from virtfleet.api.conditions import holds
from virtfleet.kube import resource
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache, key_of
from virtfleet.kube.resource import KUBEVIRTS, NODES, PODS, VMIS, Obj
from virtfleet.operator.deployments import VIRT_CONTROLLER, VIRT_DASHBOARD
from virtfleet.operator.endpoints import VIRT_API
from virtfleet.operator.handlerpods import IMAGE_TRIAL, HandlerPod, decode_pod
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.proof import PROOF

# Of our own kinds, those that the operator installs. They can be watched once they are served.
TYPES = (resource.CLUSTER_INSTANCETYPES, resource.CLUSTER_PREFERENCES)
# Kinds that the operator installs, in the order in which they are taken away. The first may not be there.
INSTALLED = (
    resource.SERVICE_MONITORS,
    *TYPES,
    resource.VALIDATING_WEBHOOKS,
    resource.MUTATING_WEBHOOKS,
    resource.API_SERVICES,
    resource.DAEMON_SETS,
    resource.DEPLOYMENTS,
    resource.POD_DISRUPTION_BUDGETS,
    resource.SERVICES,
    resource.CONFIG_MAPS,
    resource.SECRETS,
    resource.ROLE_BINDINGS,
    resource.ROLES,
    resource.CLUSTER_ROLE_BINDINGS,
    resource.CLUSTER_ROLES,
    resource.SERVICE_ACCOUNTS,
    resource.POLICY_BINDINGS,
    resource.POLICIES,
    resource.CRDS,
)
# Kinds whose generations are told, with the groups that KubeVirt gives them there.
_GENERATIONS = {
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "PodDisruptionBudget": "apps",
    "Deployment": "apps",
    "DaemonSet": "apps",
}
RESOURCES = {each.kind: each for each in INSTALLED}


class NodeView(msgspec.Struct):
    """A node as far as pools look at it."""

    name: str
    labels: dict[str, str]
    version: str
    """Version that its handler reports."""
    ready: bool = True
    runtime: str = ""
    """Versions of what runs its Pods."""
    image_volumes_of: str = ""
    """Those with which it was found out whether images are mounted as volumes."""


def decode_node(data: bytes) -> NodeView:
    node = orjson.loads(data)
    meta, status = node["metadata"], node.get("status") or {}
    notes, info = meta.get("annotations") or {}, status.get("nodeInfo") or {}
    return NodeView(
        meta["name"],
        meta.get("labels") or {},
        notes.get(names.HANDLER_VERSION, ""),
        holds(status.get("conditions") or (), "Ready"),
        f"{info.get('containerRuntimeVersion', '')} {info.get('kubeletVersion', '')}",
        notes.get(names.IMAGE_VOLUMES_OF, ""),
    )


def decode_instance(data: bytes) -> Obj:
    """Of a VMI, what decides about its pool and its image."""
    vmi = orjson.loads(data)
    meta, spec, status = vmi["metadata"], vmi.get("spec") or {}, vmi.get("status") or {}
    devices = (spec.get("domain") or {}).get("devices") or {}
    return {
        "metadata": {"namespace": meta.get("namespace", ""), "name": meta["name"], "labels": meta.get("labels") or {}},
        "spec": {
            "nodeSelector": spec.get("nodeSelector") or {},
            "hypervisor": spec.get("hypervisor") or "",
            "domain": {"devices": {field: devices.get(field) or [] for field in ("gpus", "hostDevices")}},
        },
        "status": {key: status.get(key) or "" for key in ("phase", "launcherContainerImageVersion")},
    }


class World:
    """Caches of everything that the operator decides by."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.namespace = namespace
        self.kubevirts: Cache[Obj] = Cache(api, KUBEVIRTS, namespace=namespace, decode=orjson.loads)
        self._api = api
        self.installed: dict[str, Cache[Obj]] = {
            each.kind: self._managed(each, namespace if each.namespaced else None) for each in INSTALLED[1:]
        }
        self.cdi, self.prometheus = (
            Cache[Obj](api, resource.CRDS, fields=f"metadata.name={name}", decode=lambda _: {})
            for name in (names.CDI_DEFINITION, str(resource.SERVICE_MONITORS))
        )
        self.types = {each.kind: self.installed[each.kind] for each in TYPES}
        components = f"{names.APP_LABEL} in ({VIRT_HANDLER}, {PROOF}, {IMAGE_TRIAL}, {VIRT_API}, {VIRT_CONTROLLER})"
        self.pods: Cache[HandlerPod] = Cache(api, PODS, namespace=namespace, labels=components, decode=decode_pod)
        self.nodes: Cache[NodeView] = Cache(api, NODES, decode=decode_node)
        self.instances: Cache[Obj] = Cache(api, VMIS, decode=decode_instance)
        self._serving_own = asyncio.Event()
        self._changed: Callable[[], None] = lambda: None
        self._watching: asyncio.Task[None] | None = None

    def changes(self, at_once: Callable[[], None], soon: Callable[[], None]) -> None:
        """Call back on changes: at once where a step may follow, soon where only a count does."""
        for cache in (*self.needed, *self.types.values(), self.instances):
            _follow(cache, soon if cache in (self.nodes, self.instances) else at_once)
        self._changed = at_once

    @property
    def needed(self) -> list[Cache[Any]]:
        """Caches without which nothing can be decided."""
        later = [*self.types.values(), self.monitors]
        others: list[Cache[Any]] = [self.kubevirts, self.pods, self.nodes, self.cdi, self.prometheus]
        return [*others, *(cache for cache in self.installed.values() if cache not in later)]

    async def write_status(self, kubevirt: Obj, status: Obj) -> Obj:
        """What is not said already of an installation's state. Returns the object as it is then."""
        old, meta = kubevirt.get("status") or {}, kubevirt["metadata"]
        if news := {key: value for key, value in status.items() if old.get(key) != value}:
            change = {"status": news}
            kubevirt = await self._api.patch(KUBEVIRTS, meta["name"], change, meta["namespace"], subresource="status")
            self.kubevirts.observe(kubevirt)
        return kubevirt

    async def write_finalizers(self, kubevirt: Obj, finalizers: list[str]) -> Obj:
        """With the version, because a list is replaced as a whole and others have finalizers too."""
        meta = kubevirt["metadata"]
        change = {"resourceVersion": meta["resourceVersion"], "finalizers": finalizers or None}
        return await self._api.patch(KUBEVIRTS, meta["name"], {"metadata": change}, meta["namespace"])

    def find(self, obj: Obj) -> Obj | None:
        """The installed object of that kind and name."""
        return self.installed[obj["kind"]].get(key_of(obj))

    def named(self, kind: str) -> dict[str, Obj]:
        return {obj["metadata"]["name"]: obj for obj in self.installed[kind].list()}

    def generations(self) -> list[Obj]:
        """Which generations of its objects the operator has made or taken back, told as KubeVirt does."""
        return [
            {
                "group": group,
                "resource": RESOURCES[kind].plural,
                **{key: obj["metadata"][key] for key in ("namespace", "name") if key in obj["metadata"]},
                "lastGeneration": obj["metadata"].get("generation", 0),
            }
            for kind, group in _GENERATIONS.items()
            for _, obj in sorted(self.named(kind).items())
        ]

    def control_plane(self) -> dict[str, Obj]:
        """The Deployments that VMs need; they do without the dashboard."""
        return {name: obj for name, obj in self.named("Deployment").items() if name != VIRT_DASHBOARD}

    def pods_of(self, component: str) -> list[HandlerPod]:
        return [pod for pod in self.pods.list() if pod.component == component]

    def handlers(self) -> list[HandlerPod]:
        return [pod for pod in self.pods_of(VIRT_HANDLER) if pod.daemon_set]

    def stand_ins(self) -> list[HandlerPod]:
        return [pod for pod in self.pods_of(VIRT_HANDLER) if pod.stand_in]

    def down(self) -> frozenset[str]:
        """Nodes that are not Ready."""
        return frozenset(node.name for node in self.nodes.list() if not node.ready)

    def running_instances(self) -> Iterable[Obj] | None:
        """VMIs that are not over yet; None while they are not known."""
        if not self.instances.synced.is_set():
            return None
        return (vmi for vmi in self.instances.list() if vmi["status"]["phase"] not in names.FINAL)

    def own_kinds_are_served(self) -> None:
        """To be called once the definitions of our own kinds are there; before, those cannot be watched."""
        self._serving_own.set()

    @property
    def monitors(self) -> Cache[Obj] | None:
        """Those ServiceMonitors that are ours, while there is such a kind."""
        return self.installed.get(resource.SERVICE_MONITORS.kind)

    def _managed(self, kind: resource.Resource, namespace: str | None = None) -> Cache[Obj]:
        labels = f"{names.MANAGED_BY}={names.MANAGED_BY_OPERATOR}"
        return Cache(self._api, kind, namespace=namespace, labels=labels, decode=orjson.loads)

    def _watch_monitors(self, group: asyncio.TaskGroup, served: bool) -> None:
        """A new cache each time that the kind comes: its past means nothing when it comes back."""
        if self._watching:
            self._watching.cancel()
            del self.installed[resource.SERVICE_MONITORS.kind]
            self._watching = None
        if served:
            monitors = self.installed[resource.SERVICE_MONITORS.kind] = self._managed(resource.SERVICE_MONITORS)
            _follow(monitors, self._changed)
            self._watching = group.create_task(monitors.run())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self.prometheus.on_change(
                lambda _key, old, new: self._watch_monitors(group, new is not None) if old != new else None
            )
            for cache in self.needed:
                group.create_task(cache.run())
            await self._serving_own.wait()
            for own in (self.instances, *self.types.values()):
                group.create_task(own.run())


def _follow(cache: Cache[Any], call: Callable[[], None]) -> None:
    cache.on_change(lambda _key, old, new: call() if old != new else None)
