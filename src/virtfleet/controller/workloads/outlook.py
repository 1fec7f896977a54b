"""What becomes of a running VM whose launcher image is not the one that it would get now. Pure.

One decision for the controller that acts on it and for `virtfleet pools --plan`, which says it beforehand. A VM moves
or is restarted only where the strategy of its pool, or else of the installation, names a method that fits; everything
else stays as it is and says why.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.api import conditions, names, times
from virtfleet.api.kubevirt import EVICT, LIVE_MIGRATE, KubeVirtWorkloadUpdateStrategy
from virtfleet.api.names import VMICondition
from virtfleet.api.view import read
from virtfleet.installation import Installation
from virtfleet.pools.launcher import Launcher
from virtfleet.pools.model import Pool

BATCH, INTERVAL = 10, 60.0  # as KubeVirt has it


class Fate(enum.StrEnum):
    """What becomes of the VM."""

    MOVES = "moves"
    RESTARTS = "restarts"
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How VMs get new launchers."""

    scope: str
    """The pool that says so, "" for the installation: evictions are counted for each by itself."""
    migrate: bool
    evict: bool
    batch: int
    """VMs that are evicted at one time."""
    interval: float
    """Seconds from one batch to the next."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to come for one VM."""

    launcher: Launcher
    """As it would be made now."""
    strategy: Strategy
    fate: Fate
    why: str


def strategy(installation: Installation, pool: Pool | None) -> Strategy:
    """The strategy for VMs of a pool; None: for those that belong to none."""
    general = read(KubeVirtWorkloadUpdateStrategy, installation.spec.get("workloadUpdateStrategy") or {})
    own = pool.update_strategy if pool else None
    said = own or general
    interval = times.duration(said.batch_eviction_interval) if said.batch_eviction_interval else None
    return Strategy(
        scope=pool.name if pool and own else "",
        migrate=LIVE_MIGRATE in said.workload_update_methods,
        evict=EVICT in said.workload_update_methods,
        batch=BATCH if said.batch_eviction_size is None else said.batch_eviction_size,
        interval=INTERVAL if interval is None else interval,
    )


def outlook(vmi: Mapping[str, Any], installation: Installation) -> Outlook | None:
    """What becomes of a VMI that runs; None where its launcher is the one that it would get now."""
    fleet = installation.fleet
    if not fleet.outdated(vmi):
        return None
    launcher = fleet.launcher(vmi)
    how = strategy(installation, launcher.pool)
    eviction = (vmi.get("spec") or {}).get("evictionStrategy") or installation.eviction_strategy
    return Outlook(launcher, how, *_fate(vmi, launcher, how, eviction))


def _fate(vmi: Mapping[str, Any], launcher: Launcher, how: Strategy, eviction: str) -> tuple[Fate, str]:
    """`eviction` is what the VM wants to happen when it is evicted."""
    if not (how.migrate or how.evict):
        whose = f"pool {how.scope}" if how.scope else "the KubeVirt object"
        return Fate.STAYS, f"workloadUpdateStrategy of {whose} names no method"
    if launcher.conflict:
        return Fate.STAYS, launcher.conflict
    rooted = _rooted(vmi, launcher)
    if how.migrate and not rooted:
        return Fate.MOVES, f"by {LIVE_MIGRATE}"
    if not how.evict:
        return Fate.STAYS, f"{rooted}, and {EVICT} is not among the methods"
    if eviction == "None" or (eviction == "LiveMigrateIfPossible" and rooted):
        return Fate.RESTARTS, f"by {EVICT}, as {rooted}" if rooted else f"by {EVICT}"
    if rooted:
        return Fate.STAYS, f"{rooted}, and its evictionStrategy {eviction} forbids to shut it down"
    return Fate.STAYS, f"its evictionStrategy {eviction} asks for {LIVE_MIGRATE}, which is not among the methods"


def _rooted(vmi: Mapping[str, Any], launcher: Launcher) -> str:
    """Why the VM cannot move to the launcher, in words; empty where it can."""
    runs_on = ((vmi.get("metadata") or {}).get("annotations") or {}).get(names.LAUNCHER_HYPERVISOR)
    if runs_on and runs_on != launcher.hypervisor:
        return f"it runs on hypervisor {runs_on} and would start on {launcher.hypervisor}"
    known = conditions.find((vmi.get("status") or {}).get("conditions") or (), VMICondition.LIVE_MIGRATABLE)
    if known is None:
        return "it is not known whether it can move"
    if known.get("status") == "True":
        return ""
    return f"it cannot move ({known.get('message') or known.get('reason') or 'for no reason'})"
