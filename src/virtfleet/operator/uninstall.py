"""Taking an installation away: VMs first, as far as that is wanted, then the components, then the record of it all."""

from __future__ import annotations

from virtfleet.api import names, times
from virtfleet.api.conditions import drop
from virtfleet.api.kinds import KINDS, VMI
from virtfleet.installation import WAIT_FOR_VMS, Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import CRDS, NODES, Obj, Resource, of_kind
from virtfleet.operator.conditions import DEGRADED, DELETED, DELETING, Verdict, conditions
from virtfleet.operator.objects import shown
from virtfleet.operator.render import OWN_DEFINITION, YIELDING
from virtfleet.operator.world import INSTALLED, TYPES, World

_NAMED = 10
# What makes VMs before these.
_WORKLOADS = [of_kind(kind) for kind in sorted(KINDS, key=lambda kind: kind is VMI) if kind.instance]
# What is ours on a Node.
_LABELS = (*(names.SCHEDULABLE, names.SERVED_BY, names.CPU_MANAGER, names.DEPRECATED_CPU_MANAGER), *names.NODE_FACTS)
_ANNOTATIONS = (names.HANDLER_HEARTBEAT, names.HANDLER_VERSION, names.IMAGE_VOLUMES_OF)
WAIT = 2.0
"""Seconds between two looks at what is going away."""


class Uninstall:
    """One step at a time; the answer of `step` is when to take the next one."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api = api
        self._world = world

    async def step(self, kubevirt: Obj) -> float | None:
        if names.OPERATOR_FINALIZER not in (kubevirt["metadata"].get("finalizers") or ()):
            return None
        # VMs before their instances, so that nobody starts these again.
        workloads = [(resource, obj) for resource in _WORKLOADS for obj in await self._list(resource)]
        blocked = bool(workloads) and not Installation(kubevirt).uninstalled_with_vms
        kubevirt = await self._tell(kubevirt, DELETING, _named(workloads) if blocked else "")
        if workloads:
            for resource, obj in [] if blocked else workloads:
                await self._delete(resource, obj)
            return WAIT
        if await self._remove_components() or self._handlers_end():
            return WAIT
        await self._clean_nodes()
        kubevirt = await self._tell(kubevirt, DELETED)
        left = [each for each in kubevirt["metadata"].get("finalizers") or () if each != names.OPERATOR_FINALIZER]
        await self._world.write_finalizers(kubevirt, left)
        return None

    async def _list(self, resource: Resource) -> list[Obj]:
        """Objects of a kind that may be gone already."""
        with ignoring(is_not_found):
            return await self._api.list(resource)
        return []

    async def _delete(self, resource: Resource, obj: Obj) -> None:
        meta = obj["metadata"]
        if not meta.get("deletionTimestamp"):
            with ignoring(is_not_found):
                await self._api.delete(resource, meta["name"], meta.get("namespace"), uid=meta["uid"])

    async def _remove_components(self) -> bool:
        """Delete what is installed, kind by kind; True while something is left."""
        # Definitions stay of whose objects there are claims, which would go with them.
        kept = {OWN_DEFINITION, *[name for name, resource in YIELDING.items() if await self._list(resource)]}
        defined = self._world.named(CRDS.kind)
        if any(str(each) in defined for each in TYPES):  # as an operator that was started meanwhile has yet to hear
            self._world.own_kinds_are_served()
        for resource in INSTALLED:
            known = self._world.installed.get(resource.kind)
            if known is None or (resource in TYPES and str(resource) not in defined):
                continue
            if not known.synced.is_set():
                return True
            left = [obj for obj in known.list() if obj["metadata"]["name"] not in kept]
            for obj in left:
                await self._delete(resource, obj)
            if left:
                return True
        return False

    def _handlers_end(self) -> bool:
        """Whether a handler still says goodbye, which it does on its node."""
        down = self._world.down()
        return any(pod.node not in down for pod in self._world.handlers())

    async def _tell(self, kubevirt: Obj, phase: str, waiting_for: str = "") -> Obj:
        """The phase, and who has to go first. Returns the object as it is then."""
        known = (kubevirt.get("status") or {}).get("conditions") or []
        verdicts = [Verdict(DEGRADED, True, "WorkloadsExist", waiting_for)] if waiting_for else []
        held = [*drop(known, DEGRADED), *conditions(known, verdicts, times.timestamp())]
        return await self._world.write_status(kubevirt, {"phase": phase, "health": phase, "conditions": held})

    async def _clean_nodes(self) -> None:
        """Take off the nodes what handlers and the operator wrote on them."""
        for node in await self._api.list(NODES):
            meta = node["metadata"]
            known = meta.get("labels") or ()
            labels = [key for key in known if key.startswith(names.NODE_FACT_PREFIXES) or key in _LABELS]
            notes = [key for key in _ANNOTATIONS if key in (meta.get("annotations") or {})]
            if names.IMAGE_VOLUMES_OF in notes:  # the label is ours only then
                labels.append(names.IMAGE_VOLUMES)
            if labels or notes:
                change = {"labels": dict.fromkeys(labels), "annotations": dict.fromkeys(notes)}  # null takes away
                await self._api.patch(NODES, meta["name"], {"metadata": change})


def _named(workloads: list[tuple[Resource, Obj]]) -> str:
    those = (f"{resource.kind} {o['metadata']['namespace']}/{o['metadata']['name']}" for resource, o in workloads)
    return f"the uninstall strategy is {WAIT_FOR_VMS}; delete {shown(those, _NAMED)} first"
