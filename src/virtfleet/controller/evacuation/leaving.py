"""What a VM that is to leave its node waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virtfleet.api import conditions, names
from virtfleet.api.names import Phase, VMICondition
from virtfleet.controller.migration import retries
from virtfleet.controller.migration.queue import Limits, Place
from virtfleet.controller.migration.records import Migration, migration_of
from virtfleet.controller.records.instance import Instance
from virtfleet.kube.resource import Obj

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


def failures(migrations: Sequence[Migration]) -> list[Migration]:
    """Evacuations that have failed since the VM last moved."""
    return retries.failures(migrations, lambda m: bool(m.metadata.annotations.evacuation))


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
