"""All controllers of the local cluster, on caches that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import orjson

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import (
    CONTROLLER_REVISIONS,
    CRDS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    REPLICA_SETS,
    SERVICES,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from virtfleet.local.controllers import claims, nodes
from virtfleet.local.controllers.daemonset import DaemonSets
from virtfleet.local.controllers.deployment import Deployments
from virtfleet.local.controllers.disruption import Disruptions
from virtfleet.local.controllers.endpoints import SERVICE_NAME, Endpoints
from virtfleet.local.controllers.garbage import Garbage
from virtfleet.local.controllers.namespace import Namespaces
from virtfleet.local.controllers.nodelifecycle import GRACE, LEASE_NAMESPACE, NodeLifecycle, decode_lease
from virtfleet.local.controllers.podstore import PodStore
from virtfleet.local.controllers.replicaset import ReplicaSets
from virtfleet.local.controllers.scheduler import NAME as SCHEDULER
from virtfleet.local.controllers.scheduler import Scheduler
from virtfleet.local.controllers.volumes import Volumes


class Runnable(Protocol):
    """Anything that works until it is cancelled."""

    async def run(self) -> None: ...


def _decode(data: bytes) -> Obj:
    obj: Obj = orjson.loads(data)
    return obj


def _namespace(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


def _service(obj: Obj) -> Iterable[str]:
    meta = obj["metadata"]
    name = (meta.get("labels") or {}).get(SERVICE_NAME)
    return (f"{meta['namespace']}/{name}",) if name else ()


async def run(
    api: KubeApi, kinds: Callable[[], Iterable[Resource]], volumes: Path, *, node_grace: float = GRACE
) -> None:
    """Run until cancelled.

    `kinds` are the kinds that are served now and can be listed, watched and deleted. `volumes` is the directory below
    which volumes of the class `local` are made. `node_grace` is how long a node may be silent.
    """
    async with asyncio.TaskGroup() as group:
        for part in build(api, kinds, volumes, node_grace=node_grace):
            group.create_task(part.run())


def build(
    api: KubeApi, kinds: Callable[[], Iterable[Resource]], volumes: Path, *, node_grace: float = GRACE
) -> list[Runnable]:
    """Caches, recorders and controllers, ready to run."""
    parts: list[Runnable] = []

    def cache(resource: Resource, decode: Callable[[bytes], Any] = _decode, **options: Any) -> Cache[Any]:
        made: Cache[Any] = Cache(api, resource, decode=decode, **options)
        parts.append(made)
        return made

    def recorder(component: str) -> Recorder:
        made = Recorder(api, component)
        parts.append(made)
        return made

    by_namespace = {"namespace": _namespace}
    pods = PodStore(api)
    parts.append(pods.cache)
    node_cache = cache(NODES, nodes.decode)
    namespaces = cache(NAMESPACES)
    crds = cache(CRDS)
    sets = cache(REPLICA_SETS, indexes=by_namespace)
    deployments = cache(DEPLOYMENTS, indexes=by_namespace)
    daemons = cache(DAEMON_SETS, indexes=by_namespace)
    revisions = cache(CONTROLLER_REVISIONS, indexes=by_namespace)
    services = cache(SERVICES, indexes=by_namespace)
    slices = cache(ENDPOINT_SLICES, indexes={"service": _service})
    budgets = cache(POD_DISRUPTION_BUDGETS, indexes=by_namespace)
    claim_cache = cache(PERSISTENT_VOLUME_CLAIMS, claims.decode_claim)
    volume_cache = cache(PERSISTENT_VOLUMES, claims.decode_volume)
    classes = cache(STORAGE_CLASSES, claims.decode_class)
    leases = cache(LEASES, decode_lease, namespace=LEASE_NAMESPACE)

    parts += [
        Scheduler(api, pods, node_cache, namespaces, claim_cache, volume_cache, classes, recorder(SCHEDULER)),
        ReplicaSets(api, sets, pods, recorder("replicaset-controller")),
        Deployments(api, deployments, sets, pods, recorder("deployment-controller")),
        DaemonSets(api, daemons, revisions, pods, node_cache, recorder("daemonset-controller")),
        Endpoints(api, services, slices, pods),
        Disruptions(api, budgets, sets, deployments, pods),
        Namespaces(api, namespaces, kinds),
        NodeLifecycle(api, node_cache, leases, pods, recorder("node-controller"), grace=node_grace),
        Volumes(
            api,
            claim_cache,
            volume_cache,
            classes,
            node_cache,
            pods,
            recorder("persistentvolume-controller"),
            volumes,
        ),
        Garbage(api, crds, kinds),
    ]
    return parts
