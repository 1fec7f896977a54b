"""What virt-controller's controllers share: the API, caches that they read and write through, who tells of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from virtfleet.api import names
from virtfleet.controller import cids
from virtfleet.controller.datavolumes import records as filling
from virtfleet.controller.disruption import decode_budget
from virtfleet.controller.launcherpod import decode_attachment
from virtfleet.controller.migration.records import UNFINISHED, decode_migration, decode_policy
from virtfleet.controller.pods import LauncherPods, owners
from virtfleet.controller.records.cluster import decode_claim, decode_node
from virtfleet.controller.records.instance import Instance, claim_keys, decode_instance
from virtfleet.controller.records.kept import owner_uids
from virtfleet.controller.records.vm import claim_keys as vm_claim_keys
from virtfleet.controller.records.vm import decode_replica_set, decode_vm
from virtfleet.installation import Installation, in_force
from virtfleet.kube import resource
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import Obj, Resource

T = TypeVar("T")

COMPONENT = "virt-controller"
ALL = "all"
"""Of indexes that have one key only."""
_INSTANCES = {
    "node": lambda vmi: [vmi.status.node_name] if vmi.status.node_name else [],
    "claim": claim_keys,
    "owner": owner_uids,
    "outdated": lambda vmi: [ALL] if vmi.outdated else [],
    "uncontrolled": lambda vmi: [] if vmi.controller else [vmi.namespace],
    "leaves": lambda vmi: [ALL] if vmi.leaves else [],
    cids.INDEX: cids.index,
}
_NODES = {
    "drained": lambda node: [ALL] if node.metadata.annotations.drained else [],
    "taint": lambda node: [taint.key for taint in node.spec.taints if taint.effect == "NoSchedule"],
}
_CLAIMS = {  # the VMIs whose firmware and TPM keep things there
    "state": lambda claim: [f"{claim.namespace}/{of}"] if (of := claim.metadata.labels.get(names.STATE_FOR)) else []
}
_MIGRATIONS = {
    "vmi": lambda migration: [migration.vmi_key],
    UNFINISHED: lambda migration: [] if migration.final else [UNFINISHED],
}


class Shared:
    """`parts` is what has to run, until it is cancelled."""

    def __init__(self, api: KubeApi, host: str = "", followed: Cache[Installation] | None = None) -> None:
        """With `followed`, somebody else follows the KubeVirt object already."""
        self.api = api
        self.recorder = Recorder(api, COMPONENT, host)
        self.parts: list[Cache[Any] | Recorder] = [self.recorder]
        self.instances = self._cache(resource.VMIS, decode_instance, indexes=_INSTANCES)
        self.launchers = LauncherPods(api)
        self.parts.append(self.launchers.cache)
        self.attached = self._cache(
            resource.PODS,
            decode_attachment,
            labels=f"{names.APP_LABEL}={names.HOTPLUG_APP}",
            indexes={"vmi": lambda pod: [pod.vmi_key], "owner": owner_uids},
        )
        self.vms = self._cache(resource.VMS, decode_vm, indexes={"claim": vm_claim_keys})
        namespace = {"namespace": lambda each: [each.namespace]}
        self.sets = self._cache(resource.VMI_REPLICA_SETS, decode_replica_set, indexes=namespace)
        self.nodes = self._cache(resource.NODES, decode_node, indexes=_NODES)
        self.claims = self._cache(resource.PERSISTENT_VOLUME_CLAIMS, decode_claim, indexes=_CLAIMS)
        self.budgets = self._cache(resource.POD_DISRUPTION_BUDGETS, decode_budget, indexes={"vmi": owners})
        self.migrations = self._cache(resource.VMI_MIGRATIONS, decode_migration, indexes=_MIGRATIONS)
        self.policies = self._cache(resource.MIGRATION_POLICIES, decode_policy)
        self.volumes = self._cache(resource.DATA_VOLUMES, filling.decode)
        self.importers = self._cache(
            resource.PODS,
            filling.decode_importer,
            labels=f"{names.APP_LABEL}={names.IMPORTER_APP}",
            indexes={"claim": lambda importer: [importer.claim_key]},
        )
        self.cdi = self._cache(resource.CRDS, lambda _: "", fields=f"metadata.name={names.CDI_DEFINITION}")
        self.installations = followed or self._cache(resource.KUBEVIRTS, Installation.decode)

    def _cache(self, kind: Resource, decode: Callable[[bytes], T], **options: Any) -> Cache[T]:
        made = Cache(self.api, kind, decode=decode, **options)
        self.parts.append(made)
        return made


class Part:
    """A controller, or what controllers do in the same way, with what all of them share."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api
        self._recorder = shared.recorder
        self._instances = shared.instances
        self._pods = shared.launchers
        self._vms = shared.vms
        self._nodes = shared.nodes
        self._claims = shared.claims
        self._volumes = shared.volumes
        self._migrations = shared.migrations
        self._installations = shared.installations

    @property
    def _settings(self) -> Installation:
        return in_force(self._installations.list())

    def _moving(self, vmi: Instance) -> bool:
        """Whether a migration of a VMI has not ended."""
        return any(not migration.final for migration in self._migrations.by_index("vmi", vmi.key))

    def _follow_vms(self, controller: Controller) -> None:
        """Have a controller look at a VM when something of it changes: its instance, its claims, what fills them."""
        controller.follow(self._vms)
        # An instance without a VM is none of ours; a VM that comes later is looked at when it comes.
        controller.follow(self._instances, lambda vmi: [vmi.key] if self._vms.get(vmi.key) else [])
        controller.follow(self._claims, lambda claim: [vm.key for vm in self._vms.by_index("claim", claim.key)])
        controller.follow(self._volumes, lambda volume: [vm.key for vm in self._vms.by_index("claim", volume.key)])

    async def _whole(self, vmi: Instance) -> Obj:
        """The VMI as the server has it now, which may be another one by that name."""
        return await self._api.get(resource.VMIS, vmi.name, vmi.namespace)

    async def _patch_instance(self, vmi: Instance, patch: Obj, whole: Obj | None = None) -> Instance:
        """Write to a VMI unless somebody else has, since it was seen here or read as a `whole`; as it is afterwards."""
        version = whole["metadata"]["resourceVersion"] if whole else vmi.metadata.resource_version
        seen = {"resourceVersion": version, "uid": vmi.uid}
        await self._instances.change(vmi.key, {**patch, "metadata": {**patch.get("metadata", {}), **seen}})
        return self._instances.get(vmi.key) or vmi
