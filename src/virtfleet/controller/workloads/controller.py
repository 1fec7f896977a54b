"""The two controllers that bring running VMs to the launchers that they should have.

`Marks` keeps the label `kubevirt.io/outdatedLauncherImage` true. `Updates` has the VMs that carry it move or restart,
as far as strategies say so, and only when the operator is done: with an installation that is still being changed no VM
is moved. Everything follows from objects, except when VMs were last evicted: a controller that has just come to lead
waits for one interval before it evicts.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from virtfleet.api import names
from virtfleet.api.names import Phase
from virtfleet.controller import lifecycle
from virtfleet.controller.migration import queue, retries
from virtfleet.controller.migration.queue import Limits, Place
from virtfleet.controller.migration.records import UNFINISHED, Migration, migration_of
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import ALL, Part, Shared
from virtfleet.controller.workloads.outlook import Fate, Outlook, Strategy, outlook
from virtfleet.installation import Installation
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import PODS, Obj

logger = logging.getLogger(__name__)

PREFIX = "kubevirt-workload-update-"
PRIORITY = "system-critical"  # KubeVirt's for updates
GATHERED = 1.0  # seconds for which changes are gathered before VMs are looked at
LOOK_AGAIN = 30.0  # seconds after which VMs are looked at that could do nothing just now

Due = tuple[Instance, Outlook]


class Marks(Part):
    """Labels VMIs whose launcher image is not the one that they would get now."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.controller = Controller("outdated-launchers", self.reconcile, [self._installations], workers=4)
        self.controller.follow(self._instances)
        self._installations.on_change(self._changed)

    def _changed(self, _key: str, old: Installation | None, new: Installation | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            for key in self._instances.keys():  # noqa: SIM118 (a cache is no dict)
                self.controller.queue.add(key)

    async def reconcile(self, key: str) -> None:
        vmi = self._instances.get(key)
        settings = next(iter(self._installations.list()), None)
        if vmi is None or vmi.final or vmi.deleting or settings is None:
            return
        label = "" if settings.fleet.outdated(vmi.essence()) else None
        if vmi.metadata.labels.get(names.OUTDATED_LAUNCHER_IMAGE) != label:
            patch = {"metadata": {"uid": vmi.uid, "labels": {names.OUTDATED_LAUNCHER_IMAGE: label}}}
            with ignoring(is_not_found, is_conflict):
                await self._instances.change(vmi.key, patch)


class Updates(Part):
    """Migrates and evicts what is outdated."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._evicted: dict[str, float] = {}  # scope of a strategy -> when a batch of it was last evicted
        self._began = time.monotonic()
        self.controller = Controller(
            "workload-update", self.reconcile, [self._instances, self._pods.cache, self._migrations]
        )
        self.controller.follow(self._installations)
        self._instances.on_change(lambda _, *both: self._look_soon() if any(v and v.outdated for v in both) else None)
        self._migrations.on_change(lambda *_: self._look_soon())

    def _look_soon(self) -> None:
        for key in self._installations.keys():  # noqa: SIM118
            self.controller.queue.add_after(key, GATHERED)

    async def reconcile(self, key: str) -> float | None:
        """Begin what may begin now; the answer is when more of it may."""
        settings = self._installations.get(key)
        if settings is None or settings.uninstalling:
            return None
        await self._withdraw(settings)
        if not settings.settled:
            return None  # the operator will say when it is
        due: dict[Fate, list[Due]] = {fate: [] for fate in Fate}
        for vmi in self._instances.by_index("outdated", ALL):
            running = vmi.phase == Phase.RUNNING and not vmi.deleting
            if running and (expected := outlook(vmi.essence(), settings)):
                due[expected.fate].append((vmi, expected))
        await self._move(due[Fate.MOVES], settings)
        waits = await self._restart(due[Fate.RESTARTS])
        if due[Fate.MOVES]:
            waits.append(LOOK_AGAIN)
        return min(waits, default=None)

    async def _withdraw(self, settings: Installation) -> None:
        """Take back migrations for updates that nobody wants any more, as long as no handler knows of them."""
        for migration in self._migrations.by_index(UNFINISHED, UNFINISHED):
            vmi = self._instances.get(migration.vmi_key)
            if vmi is None or migration.deleting or not migration.name.startswith(PREFIX):
                continue
            wanted = outlook(vmi.essence(), settings)
            state = vmi.status.migration_state  # of one that has arrived, too: then the VM is up to date by it
            with_handlers = state is not None and state.migration_uid == migration.uid
            if (wanted and wanted.strategy.migrate) or with_handlers:
                continue
            if await self._migrations.remove(migration.key, migration.uid):
                said = f"Deleted migration {migration.name}: its launcher is not to be updated any more"
                self._recorder.normal(vmi.reference, "SuccessfulChangeAbortion", said)

    # -- by migration

    async def _move(self, due: list[Due], settings: Installation) -> None:
        """Make as many migrations as can begin at once; more would only stand in the way of others."""
        now = time.time()
        busy = [
            Place(m.key, m.vmi_key, vmi.status.node_name if (vmi := self._instances.get(m.vmi_key)) else "")
            for m in self._migrations.by_index(UNFINISHED, UNFINISHED)
        ]
        failed = {vmi.key: self._failures(vmi) for vmi, _ in due}
        ready = {vmi.key: vmi for vmi, _ in due if retries.pause_ends(failed[vmi.key]) <= now}
        places = [Place(key, key, vmi.status.node_name, len(failed[key])) for key, vmi in ready.items()]
        for key in queue.next_to_begin(places, busy, Limits.of(settings.migrations)):
            await self._migrate(ready[key])

    def _failures(self, vmi: Instance) -> list[Migration]:
        """Updates that have failed since the VM last moved."""
        migrations = self._migrations.by_index("vmi", vmi.key)
        return retries.failures(migrations, lambda m: m.metadata.annotations.workload_update is not None)

    async def _migrate(self, vmi: Instance) -> None:
        # By the name no controller makes the same migration twice, however old its caches are.
        ended = [m for m in self._migrations.by_index("vmi", vmi.key) if m.final]
        last = next((m.uid for m in retries.newest_first(ended)), vmi.uid)
        migration = migration_of(vmi, f"{PREFIX}{last}", priority=PRIORITY, annotations={names.WORKLOAD_UPDATE: ""})
        try:
            made = await self._migrations.create(migration)
        except ApiError as error:
            if not is_already_exists(error):
                said = f"Error creating a Migration for automated workload update: {error.message}"
                self._recorder.warning(vmi.reference, "FailedCreate", said)
            return
        said = f"Created Migration {made.name} for automated workload update"
        self._recorder.normal(vmi.reference, "SuccessfulCreate", said)

    # -- by eviction

    async def _restart(self, due: list[Due]) -> list[float]:
        """Evict a batch of each strategy; the answer is after how many seconds each may have its next one."""
        by_strategy: dict[Strategy, list[Instance]] = defaultdict(list)
        for vmi, expected in due:
            by_strategy[expected.strategy].append(vmi)
        waits = []
        for strategy, vmis in by_strategy.items():
            left = self._evicted.get(strategy.scope, self._began) + strategy.interval - time.monotonic()
            if left <= 0:
                for vmi in sorted(vmis, key=lambda vmi: vmi.key)[: strategy.batch]:
                    await self._evict(vmi)
                self._evicted[strategy.scope], left = time.monotonic(), strategy.interval
            waits.append(left)
        return waits

    async def _evict(self, vmi: Instance) -> None:
        pod = lifecycle.current_pod(vmi, self._pods.of(vmi.uid))
        if pod is None or pod.deleting or self._moving(vmi):
            return
        eviction: Obj = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.create(PODS, eviction, pod.namespace, name=pod.name, subresource="eviction")
        except ApiError as error:
            if not is_not_found(error):
                said = f"Error deleting VMI during automated workload update: {error.message}"
                self._recorder.warning(vmi.reference, "FailedEvict", said)
            return
        said = "Initiated eviction of VMI as part of automated workload update"
        self._recorder.normal(vmi.reference, "SuccessfulEvict", said)
