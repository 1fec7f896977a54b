"""All controllers of the local cluster, on caches that they share."""

from __future__ import annotations

import asyncio
from pathlib import Path

from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import Resource
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.daemonset import DaemonSets
from virtfleet.local.controllers.deployment import Deployments
from virtfleet.local.controllers.disruption import Disruptions
from virtfleet.local.controllers.endpoints import Endpoints
from virtfleet.local.controllers.garbage import Garbage
from virtfleet.local.controllers.jobs import Jobs
from virtfleet.local.controllers.namespace import Namespaces
from virtfleet.local.controllers.nodelifecycle import GRACE, NodeLifecycle
from virtfleet.local.controllers.replicaset import ReplicaSets
from virtfleet.local.controllers.scheduler import Scheduler
from virtfleet.local.controllers.volumes import Volumes


async def run(api: KubeApi, kinds: Kinds, volumes: Path, *, node_grace: float = GRACE) -> None:
    """Run until cancelled.

    `kinds` are those that are served, which may change. `volumes` is the directory below which volumes of the class
    `local` are made. `node_grace` is how long a node may be silent.
    """

    def collected() -> list[Resource]:
        """The kinds whose objects go with their owner or namespace."""
        return [kind.resource for kind in kinds if {"list", "watch", "delete"} <= kind.verbs]

    caches = Caches(api)
    controllers: list[Controller | Garbage] = [
        Scheduler(caches).controller,
        ReplicaSets(caches).controller,
        Deployments(caches).controller,
        DaemonSets(caches).controller,
        Jobs(caches).controller,
        Endpoints(caches).controller,
        Disruptions(caches).controller,
        Namespaces(caches, collected).controller,
        NodeLifecycle(caches, grace=node_grace).controller,
        *Volumes(caches, volumes).controllers,
        Garbage(caches, collected),
    ]
    async with asyncio.TaskGroup() as group:
        for part in caches.parts:
            group.create_task(part.run())
        for controller in controllers:
            group.create_task(controller.run())
