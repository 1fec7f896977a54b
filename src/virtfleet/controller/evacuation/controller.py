"""The controller of evacuations: a migration for each VM that is to leave its node, as soon as there is room for it.

A VM is to leave where an eviction has marked it (`status.evacuationNodeName`), or where its node has the drain taint.
The mark goes when the VM has arrived elsewhere, when somebody takes it back, or when the node is uncordoned. That a
node was cordoned while VMs left it is noted on the Node, so that whoever leads by then knows what uncordoning means.

No migration is made before both limits let it begin. One key stands for all VMs, because the limits are everybody's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from virtfleet.api import names
from virtfleet.api.names import MigrationPhase
from virtfleet.controller.evacuation import leaving
from virtfleet.controller.evacuation.leaving import Wait
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration import queue, retries
from virtfleet.controller.migration.controller import Migrations
from virtfleet.controller.migration.records import UNFINISHED, Migration
from virtfleet.controller.pods import owners
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import ALL, Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import VMS

logger = logging.getLogger(__name__)

WAITING, CANCELLED = "EvacuationWaiting", "EvacuationCancelled"


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
        self.controller.follow(self._nodes, self._of_node)
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
        places = {vmi.key: leaving.place(vmi, now) for vmi in ready}
        waiting += places.values()
        chosen = {*queue.next_to_begin(waiting, active, limits)}
        begun = [*active, *(place for place in waiting if place.key in chosen)]
        for vmi in ready:
            if places[vmi.key].key not in chosen:
                self._tell(vmi, leaving.crowded(vmi, begun, limits))
            elif not await self._begin(vmi):
                again.append(retries.FIRST_PAUSE)
        return min(again, default=None)

    # -- who leaves

    def _leaving(self) -> list[Instance]:
        marked = self._instances.by_index("leaves", ALL)
        tainted = [vmi for node in self._tainted() for vmi in self._instances.by_index("node", node.name)]
        known = {vmi.key: vmi for vmi in (*marked, *tainted)}
        return [known[key] for key in sorted(known) if not known[key].final and not known[key].deleting]

    def _tainted(self) -> list[NodeRecord]:
        return self._nodes.by_index("taint", self._settings.migrations.node_drain_taint_key)

    def _is_tainted(self, name: str) -> bool:
        node = self._nodes.get(name)
        return node is not None and node.tainted(self._settings.migrations.node_drain_taint_key, "NoSchedule")

    def _concerns(self, vmi: Instance) -> bool:
        return vmi.leaves or self._is_tainted(vmi.status.node_name)

    def _of_pod(self, pod: LauncherPod) -> list[str]:
        vmis = (self._instances.get(key) for key in owners(pod))
        return [ALL] if any(vmi and self._concerns(vmi) for vmi in vmis) else []

    def _of_node(self, node: NodeRecord) -> list[str]:
        matters = node.spec.unschedulable or node.metadata.annotations.drained or node.spec.taints
        return [ALL] if matters else []

    def _deleted(self, _key: str, old: Migration | None, new: Migration | None) -> None:
        """Whoever deletes a migration of a drain does not want to see the next one at once."""
        if old and new is None and old.metadata.annotations.evacuation and old.phase != MigrationPhase.SUCCEEDED:
            self._setbacks[old.vmi_key] = time.time()

    def _wait(self, vmi: Instance, now: float) -> Wait | None:
        migrations = self._migrations.by_index("vmi", vmi.key)
        pods = sum(not pod.ended for pod in self._pods.of(vmi.uid))
        paused = retries.pause_ends(leaving.failures(migrations), self._setbacks.get(vmi.key, 0.0)) - now
        if paused <= 0:
            self._setbacks.pop(vmi.key, None)
        return leaving.wait(vmi, self._settings.evicted_by(vmi.spec.eviction_strategy), migrations, pods, paused)

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
        wanted = leaving.migration(vmi, self._migrations.by_index("vmi", vmi.key))
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
