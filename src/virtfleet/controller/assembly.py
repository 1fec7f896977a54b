"""virt-controller: all its controllers, on caches that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from virtfleet.api import names
from virtfleet.controller import cids, instance, metrics
from virtfleet.controller.attachments import Attachments, attachment_cache
from virtfleet.controller.connecting import Connecting
from virtfleet.controller.datavolumes import records as filling
from virtfleet.controller.datavolumes.controller import Clients, DataVolumes
from virtfleet.controller.disruption import decode_budget
from virtfleet.controller.evacuation.controller import NODE_INDEXES, Evacuations
from virtfleet.controller.fitting import Fitting
from virtfleet.controller.instance import Instances
from virtfleet.controller.migration.controller import Migrations
from virtfleet.controller.migration.records import INDEXES, decode_migration, decode_policy
from virtfleet.controller.node import SILENCE, Nodes
from virtfleet.controller.plugging import Plugging
from virtfleet.controller.pods import LauncherPods, launcher_cache, owners
from virtfleet.controller.records.cluster import decode_claim, decode_node
from virtfleet.controller.records.instance import Instance, decode_instance
from virtfleet.controller.records.kept import owner_uids
from virtfleet.controller.records.vm import decode_replica_set, decode_vm
from virtfleet.controller.replicaset import ReplicaSets
from virtfleet.controller.virtualmachine import VirtualMachines
from virtfleet.controller.vms import claim_keys
from virtfleet.controller.vmstate import state_keys
from virtfleet.controller.volumeupdate import VolumeUpdates
from virtfleet.controller.workloads.controller import OUTDATED, Marks, Updates, outdated
from virtfleet.installation import Installation
from virtfleet.kube import resource
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.events import Recorder

COMPONENT = "virt-controller"


_INDEXES = {
    "node": lambda vmi: [vmi.status.node_name] if vmi.status.node_name else [],
    "claim": instance.claim_keys,
    "owner": owner_uids,
    OUTDATED: outdated,
    "uncontrolled": lambda vmi: [] if vmi.controller else [vmi.namespace],
    "leaves": lambda vmi: ["all"] if vmi.leaves else [],
    cids.INDEX: cids.index,
}


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
        self._recorder = recorder = Recorder(api, COMPONENT, host)
        instances: Cache[Instance] = Cache(api, resource.VMIS, decode=decode_instance, indexes=_INDEXES)
        pods = launcher_cache(api)
        vms = Cache(api, resource.VMS, decode=decode_vm, indexes={"claim": claim_keys})
        sets = Cache(
            api,
            resource.VMI_REPLICA_SETS,
            decode=decode_replica_set,
            indexes={"namespace": lambda each: [each.namespace]},
        )
        nodes = Cache(api, resource.NODES, decode=decode_node, indexes=NODE_INDEXES)
        claims = Cache(api, resource.PERSISTENT_VOLUME_CLAIMS, decode=decode_claim, indexes={"state": state_keys})
        migrations = Cache(api, resource.VMI_MIGRATIONS, decode=decode_migration, indexes=INDEXES)
        policies = Cache(api, resource.MIGRATION_POLICIES, decode=decode_policy)
        budgets = Cache(api, resource.POD_DISRUPTION_BUDGETS, decode=decode_budget, indexes={"vmi": owners})
        installations = followed or Cache(api, resource.KUBEVIRTS, decode=Installation.decode)
        volumes = Cache(api, resource.DATA_VOLUMES, decode=filling.decode)
        importers = filling.importer_cache(api)
        cdi: Cache[str] = Cache(
            api, resource.CRDS, fields=f"metadata.name={names.CDI_DEFINITION}", decode=lambda _: names.CDI_DEFINITION
        )
        launchers = LauncherPods(api, pods)
        attached = attachment_cache(api)
        attachments = Attachments(
            api, recorder, cache=attached, claims=claims, volumes=volumes, installations=installations
        )
        self._caches: list[Cache[Any]] = [
            *(
                instances,
                pods,
                attached,
                vms,
                sets,
                nodes,
                claims,
                budgets,
                migrations,
                policies,
                volumes,
                importers,
                cdi,
            ),
            *(() if followed else (installations,)),
        ]
        migrating = Migrations(
            api,
            recorder,
            migrations=migrations,
            instances=instances,
            launchers=launchers,
            attachments=attachments,
            nodes=nodes,
            claims=claims,
            policies=policies,
            installations=installations,
        )
        self._controllers = [
            Instances(
                api,
                recorder,
                instances=instances,
                launchers=launchers,
                attachments=attachments,
                vms=vms,
                claims=claims,
                volumes=volumes,
                budgets=budgets,
                nodes=nodes,
                installations=installations,
            ).controller,
            Plugging(api, instances=instances, launchers=launchers, attachments=attachments, claims=claims).controller,
            Connecting(api, recorder, instances=instances, launchers=launchers).controller,
            VirtualMachines(
                api,
                recorder,
                vms=vms,
                instances=instances,
                claims=claims,
                volumes=volumes,
                installations=installations,
            ).controller,
            DataVolumes(
                api,
                recorder,
                volumes=volumes,
                claims=claims,
                importers=importers,
                nodes=nodes,
                installations=installations,
                cdi=cdi,
                clients=clients,
            ).controller,
            VolumeUpdates(
                api,
                recorder,
                vms=vms,
                instances=instances,
                claims=claims,
                volumes=volumes,
                migrations=migrations,
            ).controller,
            Fitting(
                api,
                recorder,
                instances=instances,
                launchers=launchers,
                migrations=migrations,
                nodes=nodes,
                installations=installations,
            ).controller,
            ReplicaSets(api, recorder, sets=sets, instances=instances).controller,
            migrating.controller,
            Evacuations(
                api,
                recorder,
                migrating,
                migrations=migrations,
                instances=instances,
                launchers=launchers,
                nodes=nodes,
                installations=installations,
            ).controller,
            Marks(api, instances=instances, installations=installations).controller,
            Updates(
                api,
                recorder,
                instances=instances,
                launchers=launchers,
                migrations=migrations,
                installations=installations,
            ).controller,
            Nodes(api, recorder, nodes=nodes, instances=instances, launchers=launchers, silence=silence).controller,
        ]
        self.metrics = metrics.Fleet(vms, instances, launchers, migrations)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            for cache in self._caches:
                group.create_task(cache.run())
            for controller in self._controllers:
                group.create_task(controller.run())
