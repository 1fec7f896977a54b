"""Replica sets of VMIs: as many instances as asked for, of one template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from virtfleet.api import conditions, kinds
from virtfleet.api.conditions import Condition
from virtfleet.api.names import Phase, VMICondition
from virtfleet.api.selectors import Selector, from_label_selector
from virtfleet.controller import templates
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import ReplicaSet
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import VMI_REPLICA_SETS, Obj, owner_reference

BURST = 250  # instances made or deleted in one go
# Which instances go first when there are too many: those whose loss hurts least.
_WORTH = ("", Phase.PENDING, Phase.SCHEDULING, Phase.SCHEDULED, Phase.RUNNING)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a set needs."""

    missing: int
    surplus: tuple[Instance, ...]
    finished: tuple[Instance, ...]


def is_active(vmi: Instance) -> bool:
    """Neither is it over, nor does its Pod go away, which will not come back."""
    lost = conditions.holds(
        vmi.status.conditions, VMICondition.READY, "False", "PodTerminating"
    )  # and will not be back
    return not (vmi.final or vmi.deleting or lost)


def plan(replicas: int, owned: Iterable[Instance]) -> Plan:
    """How to come to the wanted number."""
    owned = list(owned)
    active = sorted((vmi for vmi in owned if is_active(vmi)), key=_worth)
    finished = tuple(vmi for vmi in owned if not is_active(vmi) and not vmi.deleting)
    return Plan(max(0, replicas - len(active)), tuple(active[: max(0, len(active) - replicas)]), finished)


def _worth(vmi: Instance) -> tuple[int, bool, str]:
    phase = _WORTH.index(vmi.phase) if vmi.phase in _WORTH else 0
    ready = conditions.holds(vmi.status.conditions, VMICondition.READY)
    return phase, ready, vmi.name


def as_text(selector: Selector) -> str:
    """The selector as autoscalers read it."""
    return ",".join(_requirement(r.key, r.op, r.values) for r in sorted(selector.requirements, key=lambda r: r.key))


def _requirement(key: str, op: str, values: tuple[str, ...]) -> str:
    if op == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    listed = f"({','.join(sorted(values))})"
    return {"In": f"{key} in {listed}", "NotIn": f"{key} notin {listed}", "DoesNotExist": f"!{key}"}.get(op, key)


def status_of(replica_set: Obj, owned: Iterable[Instance], selector: Selector, failure: str, now: float) -> Obj:
    """The status that the set should have. `failure` is why its size could not be reached, if it could not."""
    spec, old = replica_set["spec"], replica_set.get("status") or {}
    active = [vmi for vmi in owned if is_active(vmi)]
    listed: list[Condition] = old.get("conditions") or []
    paused = ("Paused", "Controller got paused") if spec.get("paused") else None
    listed = conditions.state(listed, "ReplicaPaused", now, paused)
    reason = "FailedCreate" if len(active) < spec.get("replicas", 1) else "FailedDelete"
    listed = conditions.state(listed, "ReplicaFailure", now, (reason, failure) if failure else None)
    return {
        "replicas": len(active),
        "readyReplicas": sum(conditions.holds(vmi.status.conditions, VMICondition.READY) for vmi in active),
        "labelSelector": as_text(selector),
        "conditions": listed,
    }


class ReplicaSets(Part):
    """The controller."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._sets = shared.sets
        self.controller = Controller(kinds.REPLICA_SET.singular, self.reconcile, workers=4)
        self.controller.follow(self._sets)
        self.controller.follow(self._instances, self._sets_of)

    async def reconcile(self, key: str) -> float | None:
        """Claim instances, reach the wanted number of them, say how it stands."""
        replica_set = self._sets.get(key)
        if replica_set is None:
            return None
        obj = replica_set.object()
        selector = from_label_selector(obj["spec"]["selector"])
        failure = ""
        if not replica_set.deleting:
            await self._claim(replica_set, obj, selector)
            if not obj["spec"].get("paused"):
                failure = await self._resize(replica_set, obj)
        # They are read again: what was just made or deleted counts already.
        status = status_of(obj, self._owned(replica_set), selector, failure, time.time())
        await self._write_status(replica_set, obj, status)
        if failure:
            raise ApiError("InternalError", failure)
        return None

    # -- whose instances are whose

    def _owned(self, replica_set: ReplicaSet) -> list[Instance]:
        return self._instances.by_index("owner", replica_set.uid)

    def _sets_of(self, vmi: Instance) -> Iterator[str]:
        """The set that controls an instance, or those that would adopt it."""
        owner = vmi.controller
        if owner:
            if owner.kind == VMI_REPLICA_SETS.kind:
                yield f"{vmi.namespace}/{owner.name}"
            return
        for replica_set in self._sets.by_index("namespace", vmi.namespace):
            if from_label_selector(replica_set.object()["spec"]["selector"]).matches(vmi.metadata.labels):
                yield replica_set.key

    async def _claim(self, replica_set: ReplicaSet, obj: Obj, selector: Selector) -> None:
        """Release what does not match any more, adopt what matches and nobody controls."""
        for vmi in self._owned(replica_set):
            if not vmi.deleting and not selector.matches(vmi.metadata.labels):
                await self._set_owner(vmi, [])
        orphans = [
            vmi
            for vmi in self._instances.by_index("uncontrolled", replica_set.namespace)
            if is_active(vmi) and selector.matches(vmi.metadata.labels)
        ]
        if orphans and await self._is_there_to_stay(replica_set):
            for vmi in orphans:
                await self._set_owner(vmi, [owner_reference(obj, VMI_REPLICA_SETS)])

    async def _is_there_to_stay(self, replica_set: ReplicaSet) -> bool:
        """A set that is deleted without its instances must not take them back."""
        with ignoring(is_not_found):
            live = await self._api.get(VMI_REPLICA_SETS, replica_set.name, replica_set.namespace)
            meta = live["metadata"]
            return bool(meta["uid"] == replica_set.uid and not meta.get("deletionTimestamp"))
        return False

    async def _set_owner(self, vmi: Instance, owners: list[Obj]) -> None:
        await self._patch_instance(vmi, {"metadata": {"ownerReferences": owners}})

    # -- their number

    async def _resize(self, replica_set: ReplicaSet, obj: Obj) -> str:
        """Make and delete instances; the answer is what went wrong, if anything did."""
        needed = plan(obj["spec"].get("replicas", 1), self._owned(replica_set))
        doomed = [*needed.surplus[:BURST], *needed.finished[:BURST]]
        wanted = self._free_slots(replica_set, obj, min(needed.missing, BURST))
        outcomes = await asyncio.gather(
            *(self._delete(replica_set, vmi) for vmi in doomed),
            *(self._create(replica_set, vmi) for vmi in wanted),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, ApiError):
                raise failure
        return str(failures[0]) if failures else ""

    def _free_slots(self, replica_set: ReplicaSet, obj: Obj, missing: int) -> list[Obj]:
        slots = (templates.instance_of_replica_set(obj, slot) for slot in count())
        free = (vmi for vmi in slots if not self._instances.get(f"{replica_set.namespace}/{vmi['metadata']['name']}"))
        return [*islice(free, missing)]

    async def _create(self, replica_set: ReplicaSet, vmi: Obj) -> None:
        name = vmi["metadata"]["name"]
        try:
            await self._instances.create(vmi)
        except ApiError as error:
            if is_already_exists(error):  # somebody filled the slot; the cache is about to show it
                return
            what = f"Error creating virtual machine instance: {error.message}"
            self._recorder.warning(replica_set.reference, "FailedCreate", what)
            raise
        what = f"Started the virtual machine by creating the new virtual machine instance {name}"
        self._recorder.normal(replica_set.reference, "SuccessfulCreate", what)

    async def _delete(self, replica_set: ReplicaSet, vmi: Instance) -> None:
        try:
            asked = await self._instances.remove(vmi.key, vmi.uid)
        except ApiError as error:
            what = f"Error deleting virtual machine instance {vmi.name}: {error.message}"
            self._recorder.warning(replica_set.reference, "FailedDelete", what)
            raise
        if asked:
            what = f"Stopped the virtual machine by deleting the virtual machine instance {vmi.uid}"
            self._recorder.normal(replica_set.reference, "SuccessfulDelete", what)

    async def _write_status(self, replica_set: ReplicaSet, obj: Obj, status: Obj) -> None:
        old = obj.get("status") or {}
        if all(old.get(key, []) == value for key, value in status.items()):
            return
        await self._sets.change(replica_set.key, {"status": status}, subresource="status")
        was = conditions.find(old.get("conditions") or (), "ReplicaPaused") is not None
        paused = bool(obj["spec"].get("paused"))
        if was != paused:
            reason, what = ("SuccessfulPaused", "Paused") if paused else ("SuccessfulResumed", "Resumed")
            self._recorder.normal(replica_set.reference, reason, what)
