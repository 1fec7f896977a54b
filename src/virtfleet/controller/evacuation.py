"""The controller of evacuations: a migration for each VM that is to leave its node, as soon as there is room for it.

A VM is to leave where an eviction has marked it (`status.evacuationNodeName`), or where its node has the drain taint.
The mark goes when the VM has arrived elsewhere, when somebody takes it back, or when the node is uncordoned. That a
node was cordoned while VMs left it is noted on the Node, so that whoever leads by then knows what uncordoning means.

No migration is made before both limits let it begin. One key stands for all VMs, because the limits are everybody's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from virtfleet.api import conditions, names
from virtfleet.api.names import MigrationPhase, Phase, VMICondition
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration import queue, retries
from virtfleet.controller.migration.controller import Migrations
from virtfleet.controller.migration.queue import Limits, Place
from virtfleet.controller.migration.records import UNFINISHED, Migration, migration_of
from virtfleet.controller.pods import owners
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import ALL, Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import VMS, Obj

logger = logging.getLogger(__name__)

WAITING, CANCELLED = "EvacuationWaiting", "EvacuationCancelled"
CRITICAL, MAINTENANCE = "system-critical", "system-maintenance"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a VM does not leave yet. Each `kind` is said once."""

    kind: str
    message: str = ""
    """For people; empty where it goes without saying."""
    seconds: float | None = None
    """After which it is over, where no change of an object tells."""


def wait(vmi: Instance, strategy: str, migrations: Sequence[Migration], pods: int, paused: float) -> Wait | None:
    """What a VM waits for that is to leave; None where a migration could be made now.

    `paused` are the seconds that are left since something went wrong with its last migration.
    """
    node = vmi.status.node_name
    if strategy == "External":
        return Wait("external", f"it is to leave node {node}, and whoever manages it has to move or stop it")
    if strategy not in ("LiveMigrate", "LiveMigrateIfPossible") or vmi.phase != Phase.RUNNING:
        return Wait("nothing")
    if not vmi.migratable:
        fixed = conditions.find(vmi.status.conditions, VMICondition.LIVE_MIGRATABLE) or {}
        why = f"{fixed.get('reason') or 'unknown'}: {fixed.get('message') or 'nobody has said yet whether it can'}"
        message = f"it is to leave node {node} and cannot migrate, {why}; stop the VM to let the drain go on"
        return Wait("fixed", message if strategy == "LiveMigrate" else "")
    if any(not m.final for m in migrations) or pods > 1:
        return Wait("moving")
    if paused > 0:
        why = _last_failure(migrations) or "its migration was deleted or refused"
        again = f"tried again after pauses of up to {retries.LONGEST_PAUSE:.0f} s"
        return Wait("failed", f"it is to leave node {node} and did not: {why}; {again}", paused)
    return None


def crowded(vmi: Instance, begun: Sequence[Place], limits: Limits) -> Wait:
    """Why it is not the turn of a VM that could migrate."""
    node = vmi.status.node_name
    leaving = sum(place.node == node for place in begun)
    if leaving >= limits.node:
        what = f"{limits.node} VMs leave the node at one time (parallelOutboundMigrationsPerNode)"
    else:
        what = f"{limits.cluster} VMs migrate in the cluster at one time (parallelMigrationsPerCluster)"
    return Wait("crowded", f"it is to leave node {node} and waits for others: {what}")


def _last_failure(migrations: Sequence[Migration]) -> str:
    states = (m.status.migration_state for m in retries.newest_first(migrations) if m.metadata.annotations.evacuation)
    return next((state.failure_reason for state in states if state and state.failure_reason), "")


def place(vmi: Instance, now: float) -> Place:
    """The place in the queue that a migration would have."""
    return Place(f"vmi:{vmi.key}", vmi.key, vmi.status.node_name, now, _priority(vmi))


def _priority(vmi: Instance) -> str:
    return MAINTENANCE if vmi.metadata.annotations.eviction_source == names.DESCHEDULER else CRITICAL


def migration(vmi: Instance, migrations: Sequence[Migration]) -> Obj:
    """The migration that takes a VM off its node."""
    attempt = retries.attempt(migrations, vmi.uid, vmi.status.node_name)
    annotations = {names.EVACUATION: vmi.status.node_name}
    return migration_of(vmi, f"kubevirt-evacuation-{attempt}", priority=_priority(vmi), annotations=annotations)


class Evacuations(Part):
    """The controller. `migrating` knows how many migrations there are, and may be."""

    def __init__(self, shared: Shared, migrating: Migrations) -> None:
        super().__init__(shared)
        self._migrating = migrating
        self._announced: dict[str, set[str]] = {}  # UID of a VMI -> what it was said to wait for
        self._setbacks: dict[str, float] = {}  # key of a VMI -> when a migration of it came to nothing
        self.controller = Controller("evacuation", self.reconcile)
        self.controller.follow(self._instances, lambda vmi: [ALL] if self._concerns(vmi) else [])
        self.controller.follow(self._migrations, lambda _: [ALL])
        self.controller.follow(self._pods.cache, self._of_pod)
        self.controller.follow(self._nodes, lambda node: [ALL] if node.drained or node.spec.taints else [])
        self.controller.follow(self._installations, lambda _: [ALL])
        self._migrations.on_change(self._deleted)

    async def reconcile(self, _: str) -> float | None:
        """Move what is to leave and can, and say what the others wait for."""
        await self._look_at_nodes()
        await self._withdraw()
        going, now = self._leaving(), time.time()
        self._announced = {vmi.uid: kinds for vmi in going if (kinds := self._announced.get(vmi.uid))}
        ready, again = [], []
        for vmi in going:
            if waits := self._wait(vmi, now):
                self._tell(vmi, waits)
                again += [waits.seconds] if waits.seconds is not None else []
            else:
                ready.append(vmi)
        waiting, active = self._migrating.places()
        limits = self._migrating.limits
        places = {vmi.key: place(vmi, now) for vmi in ready}
        waiting += places.values()
        chosen = {*queue.next_to_begin(waiting, active, limits)}
        begun = [*active, *(place for place in waiting if place.key in chosen)]
        for vmi in ready:
            if places[vmi.key].key not in chosen:
                self._tell(vmi, crowded(vmi, begun, limits))
            elif not await self._begin(vmi):
                again.append(retries.FIRST_PAUSE)
        return min(again, default=None)

    # -- who leaves

    @property
    def _drain_taint(self) -> str:
        return self._settings.migrations.node_drain_taint_key or ""

    def _leaving(self) -> list[Instance]:
        marked = self._instances.by_index("leaves", ALL)
        nodes = self._nodes.by_index("taint", self._drain_taint)
        tainted = [vmi for node in nodes for vmi in self._instances.by_index("node", node.name)]
        known = {vmi.key: vmi for vmi in (*marked, *tainted)}
        return [known[key] for key in sorted(known) if not known[key].final and not known[key].deleting]

    def _concerns(self, vmi: Instance) -> bool:
        node = self._nodes.get(vmi.status.node_name)
        return vmi.leaves or (node is not None and node.tainted(self._drain_taint, "NoSchedule"))

    def _of_pod(self, pod: LauncherPod) -> list[str]:
        vmis = (self._instances.get(key) for key in owners(pod))
        return [ALL] if any(vmi and self._concerns(vmi) for vmi in vmis) else []

    def _deleted(self, _key: str, old: Migration | None, new: Migration | None) -> None:
        """Whoever deletes a migration of a drain does not want to see the next one at once."""
        if old and new is None and old.metadata.annotations.evacuation and old.phase != MigrationPhase.SUCCEEDED:
            self._setbacks[old.vmi_key] = time.time()

    def _wait(self, vmi: Instance, now: float) -> Wait | None:
        migrations = self._migrations.by_index("vmi", vmi.key)
        pods = sum(not pod.ended for pod in self._pods.of(vmi.uid))
        failed = retries.failures(migrations, lambda m: bool(m.metadata.annotations.evacuation))
        paused = retries.pause_ends(failed, self._setbacks.get(vmi.key, 0.0)) - now
        if paused <= 0:
            self._setbacks.pop(vmi.key, None)
        strategy = vmi.spec.eviction_strategy or self._settings.eviction_strategy
        return wait(vmi, strategy, migrations, pods, paused)

    # -- nodes that are drained, and no longer

    async def _look_at_nodes(self) -> None:
        """Note which nodes are drained, and let VMs stay where that is over."""
        marked = {vmi.status.node_name for vmi in self._instances.by_index("leaves", ALL)}
        for name in sorted(marked):
            node = self._nodes.get(name)
            if node and node.spec.unschedulable and not node.metadata.annotations.drained:
                await self._note(node, "true")
        for node in self._nodes.by_index("drained", ALL):
            if not node.spec.unschedulable:
                await self._stay(self._instances.by_index("node", node.name), f"node {node.name} was uncordoned")
                await self._note(node, None)

    async def _note(self, node: NodeRecord, drained: str | None) -> None:
        note = {"metadata": {"annotations": {names.DRAINED: drained}}}
        with ignoring(is_not_found):
            await self._nodes.change(node.name, note)

    async def _stay(self, vmis: Iterable[Instance], why: str) -> None:
        for vmi in vmis:
            if not vmi.leaves:
                continue
            with ignoring(is_not_found):
                await self._patch_instance(vmi, {"status": {"evacuationNodeName": None}})
                self._event(vmi, CANCELLED, f"it stays: {why}")

    async def _withdraw(self) -> None:
        """Take migrations back whose VMs need not leave any more, unless the guest is on its way already."""
        for migration in self._migrations.by_index(UNFINISHED, UNFINISHED):
            node = migration.metadata.annotations.evacuation
            vmi = self._instances.get(migration.vmi_key)
            if not node or migration.deleting or vmi is None or vmi.migrating:
                continue
            stays = vmi.status.node_name == node and not self._concerns(vmi)
            if stays and await self._migrations.remove(migration.key, migration.uid):
                self._event(vmi, CANCELLED, f"Deleted Migration {migration.name}: the VM need not leave {node}")

    # -- moving

    async def _begin(self, vmi: Instance) -> bool:
        """Make the migration. The server may know better; others are not held up by that."""
        wanted = migration(vmi, self._migrations.by_index("vmi", vmi.key))
        try:
            with ignoring(is_already_exists):  # made by somebody else, or about to be seen
                await self._migrations.create(wanted)
                self._event(vmi, "SuccessfulCreate", f"Created Migration {wanted['metadata']['name']}")
        except ApiError as error:
            logger.warning("no migration for VMI %s: %s", vmi.key, error.message)
            self._setbacks[vmi.key] = time.time()
            message = f"it is to leave node {vmi.status.node_name}, and its migration is refused: {error.message}"
            self._tell(vmi, Wait("failed", message))
            return False
        return True

    def _tell(self, vmi: Instance, waits: Wait) -> None:
        """Say once what a VM waits for, and not at every attempt."""
        announced = self._announced.setdefault(vmi.uid, set())
        if waits.message and waits.kind not in announced:
            announced.add(waits.kind)
            self._event(vmi, WAITING, waits.message, warning=waits.kind != "crowded")

    def _event(self, vmi: Instance, reason: str, message: str, *, warning: bool = False) -> None:
        """On the VMI, and on its VM, which people look at."""
        tell = self._recorder.warning if warning else self._recorder.normal
        tell(vmi.reference, reason, message)
        owner = vmi.controller
        if owner and owner.kind == VMS.kind:
            tell(Reference(VMS.api_version, VMS.kind, vmi.namespace, owner.name, owner.uid), reason, message)
