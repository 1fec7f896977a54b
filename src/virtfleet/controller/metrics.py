"""What virt-controller tells Prometheus, with KubeVirt's names where they exist.

VMs and VMIs are counted when somebody asks, from the cache that is there anyway. Times between phases are taken as
the changes pass by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from virtfleet.api import times
from virtfleet.api.names import MigrationPhase, PrintableStatus
from virtfleet.controller import lifecycle
from virtfleet.controller.migration.records import Migration
from virtfleet.controller.pods import LauncherPods
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm
from virtfleet.kube.cache import Cache

_SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600, 1800, 3600)
FROM_LAST = Histogram(
    "kubevirt_vmi_phase_transition_time_seconds",
    "Time from one phase of a VMI to the next",
    ["phase", "last_phase"],
    buckets=_SECONDS,
)
FROM_CREATION = Histogram(
    "kubevirt_vmi_phase_transition_time_from_creation_seconds",
    "Time from the creation of a VMI to the begin of a phase",
    ["phase"],
    buckets=_SECONDS,
)
MIGRATION_PHASES = Histogram(
    "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds",
    "Time from the creation of a migration to the begin of a phase",
    ["phase"],
    buckets=_SECONDS,
)
LEADING = Gauge("kubevirt_virt_controller_leading_status", "Whether this virt-controller leads")


# KubeVirt's groups of the words that a VM's status is told in.
_GROUPS = {
    PrintableStatus.RUNNING: "running",
    PrintableStatus.MIGRATING: "migrating",
    PrintableStatus.PROVISIONING: "starting",
    PrintableStatus.STARTING: "starting",
    PrintableStatus.WAITING_FOR_VOLUME_BINDING: "starting",
    PrintableStatus.PAUSED: "non_running",
    PrintableStatus.STOPPED: "non_running",
    PrintableStatus.STOPPING: "non_running",
    PrintableStatus.TERMINATING: "non_running",
}
_ERROR = "error"
# KubeVirt's groups of the phases of migrations that have not ended.
_MIGRATION_GROUPS = {
    "unset": ("",),
    "pending": (MigrationPhase.PENDING,),
    "scheduling": (MigrationPhase.SCHEDULING, MigrationPhase.SCHEDULED),
    "running": (MigrationPhase.PREPARING_TARGET, MigrationPhase.TARGET_READY, MigrationPhase.RUNNING),
}


class Fleet(Collector):
    """The VMs, VMIs and migrations that there are."""

    def __init__(
        self, vms: Cache[Vm], instances: Cache[Instance], launchers: LauncherPods, migrations: Cache[Migration]
    ) -> None:
        self._vms = vms
        self._instances = instances
        self._pods = launchers
        self._migrations = migrations
        instances.on_change(observe_transition)
        migrations.on_change(observe_migration)

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is to be counted when this is registered

    def collect(self) -> Iterable[Metric]:
        yield from self._of_vms()
        yield from self._of_instances()
        yield from self._of_migrations()
        yield from self._of_moves()

    def _of_vms(self) -> Iterable[Metric]:
        vms = self._vms.list()
        counts = Counter((vm.namespace,) for vm in vms)
        yield _gauge("kubevirt_number_of_vms", "Number of VMs", ["namespace"], counts)
        states = ((vm.namespace, vm.name, vm.status.printable_status) for vm in vms)
        infos = {(*vm, _GROUPS.get(vm[-1], _ERROR)): 1 for vm in states}
        labels = ["namespace", "name", "status", "status_group"]
        yield _gauge("kubevirt_vm_info", "A VM", labels, infos)

    def _of_instances(self) -> Iterable[Metric]:
        vmis = self._instances.list()
        labels = ["node", "phase", "pool", "hypervisor"]
        yield _gauge("kubevirt_vmi_phase_count", "Number of VMIs", labels, Counter(map(_place, vmis)))
        infos = {}
        for vmi in vmis:
            pod = lifecycle.current_pod(vmi, self._pods.of(vmi.uid))
            infos[vmi.namespace, vmi.name, *_place(vmi), pod.name if pod else "", str(vmi.outdated).lower()] = 1
        yield _gauge("kubevirt_vmi_info", "A VMI", ["namespace", "name", *labels, "vmi_pod", "outdated"], infos)
        text = "Number of VMIs whose launcher image is not the one that they would get now"
        yield GaugeMetricFamily("kubevirt_vmi_number_of_outdated", text, sum(vmi.outdated for vmi in vmis))

    def _of_migrations(self) -> Iterable[Metric]:
        migrations = self._migrations.list()
        for group, phases in _MIGRATION_GROUPS.items():
            name, text = f"kubevirt_vmi_migrations_in_{group}_phase", f"Number of migrations that are {group}"
            yield GaugeMetricFamily(name, text, sum(migration.phase in phases for migration in migrations))
        for phase, word in ((MigrationPhase.SUCCEEDED, "succeeded"), (MigrationPhase.FAILED, "failed")):
            ended = {(m.spec.vmi_name, m.name, m.namespace): 1 for m in migrations if m.phase == phase}
            name, labels = f"kubevirt_vmi_migration_{word}", ["vmi", "vmim", "namespace"]
            yield _gauge(name, f"A migration that {word}", labels, ended)

    def _of_moves(self) -> Iterable[Metric]:
        """When the latest migration of each VMI began and ended."""
        named = {migration.uid: migration.name for migration in self._migrations.list()}
        labels = ["node", "namespace", "name", "migration_name"]
        began: dict[tuple[str, ...], float] = {}
        ended: dict[tuple[str, ...], float] = {}
        for vmi in self._instances.list():
            if (state := vmi.status.migration_state) is None:
                continue
            place = (vmi.status.node_name, vmi.namespace, vmi.name, named.get(state.migration_uid, ""))
            if state.start_timestamp:
                began[place] = times.seconds(state.start_timestamp)
            if state.end_timestamp:
                how = "failed" if state.failed else "succeeded" if state.completed else ""
                ended[*place, how] = times.seconds(state.end_timestamp)
        yield _gauge("kubevirt_vmi_migration_start_time_seconds", "When it began", labels, began)
        yield _gauge("kubevirt_vmi_migration_end_time_seconds", "When it ended", [*labels, "status"], ended)


def _gauge(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _place(vmi: Instance) -> tuple[str, str, str, str]:
    return vmi.status.node_name, vmi.phase, vmi.pool, vmi.metadata.annotations.hypervisor


def observe_transition(_key: str, old: Instance | None, new: Instance | None) -> None:
    """A phase that has begun. What was there when we came is not news."""
    if old is None or new is None or old.phase == new.phase:
        return
    began = {t.phase: times.seconds(t.phase_transition_timestamp) for t in new.status.phase_transition_timestamps}
    if new.phase not in began:
        return
    FROM_CREATION.labels(new.phase).observe(began[new.phase] - times.seconds(new.metadata.creation_timestamp))
    if old.phase in began:
        FROM_LAST.labels(new.phase, old.phase).observe(began[new.phase] - began[old.phase])


def observe_migration(_key: str, old: Migration | None, new: Migration | None) -> None:
    """A phase of a migration that has begun."""
    if old and new and old.phase != new.phase:
        took = times.seconds(new.since) - times.seconds(new.metadata.creation_timestamp)
        MIGRATION_PHASES.labels(new.phase).observe(took)
