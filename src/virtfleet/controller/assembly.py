"""virt-controller: all its controllers, on caches that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from virtfleet.controller import metrics
from virtfleet.controller.connecting import Connecting
from virtfleet.controller.datavolumes.controller import Clients, DataVolumes
from virtfleet.controller.evacuation import Evacuations
from virtfleet.controller.fitting import Fitting
from virtfleet.controller.instance import Instances
from virtfleet.controller.migration.controller import Migrations
from virtfleet.controller.node import SILENCE, Nodes
from virtfleet.controller.plugging import Plugging
from virtfleet.controller.replicaset import ReplicaSets
from virtfleet.controller.shared import Shared
from virtfleet.controller.virtualmachine import VirtualMachines
from virtfleet.controller.volumeupdate import VolumeUpdates
from virtfleet.controller.workloads.controller import Marks, Updates
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache


class VirtController:
    """`run()` works until cancelled. Nothing is remembered beyond that: another one takes over from the objects."""

    def __init__(
        self,
        api: KubeApi,
        host: str = "",
        *,
        silence: float = SILENCE,
        followed: Cache[Installation] | None = None,
        clients: Callable[[], Clients] = Clients,
    ) -> None:
        """With `followed`, somebody else follows the KubeVirt object already; `clients` says who may upload."""
        self._shared = shared = Shared(api, host, followed)
        migrating = Migrations(shared)
        self._controllers = [
            Instances(shared).controller,
            Plugging(shared).controller,
            Connecting(shared).controller,
            VirtualMachines(shared).controller,
            DataVolumes(shared, clients).controller,
            VolumeUpdates(shared).controller,
            Fitting(shared).controller,
            ReplicaSets(shared).controller,
            migrating.controller,
            Evacuations(shared, migrating).controller,
            Marks(shared).controller,
            Updates(shared).controller,
            Nodes(shared, silence).controller,
        ]
        self.metrics = metrics.Fleet(shared.vms, shared.instances, shared.launchers, shared.migrations)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for part in (*self._shared.parts, *self._controllers):
                group.create_task(part.run())
