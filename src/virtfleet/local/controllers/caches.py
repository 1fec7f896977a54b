"""What all controllers of the local cluster share: the API, one collection of each kind that they read, recorders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from virtfleet.kube import resource as kinds
from virtfleet.kube.api import KubeApi
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers import nodes, pods
from virtfleet.local.controllers.collection import Collection, controller_of
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.pods import Pod

LEASE_NAMESPACE = "kube-node-lease"
SERVICE_NAME = "kubernetes.io/service-name"


def _namespace(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


def _owner(obj: Obj) -> Iterable[str]:
    ref = controller_of(obj)
    return (ref["uid"],) if ref else ()


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
        self.replica_sets = self._collection(kinds.REPLICA_SETS, indexes={"owner": _owner})
        self.deployments = self._collection(kinds.DEPLOYMENTS)
        self.daemon_sets = self._collection(kinds.DAEMON_SETS)
        self.jobs = self._collection(kinds.JOBS)
        self.services = self._collection(kinds.SERVICES, indexes={"namespace": _namespace})
        self.slices = self._collection(kinds.ENDPOINT_SLICES, indexes={"service": service_of})
        self.budgets = self._collection(kinds.POD_DISRUPTION_BUDGETS, indexes={"namespace": _namespace})
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
