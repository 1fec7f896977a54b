"""How long a VM is left alone whose migrations fail, of those that a controller makes again and again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2s

from virtfleet.api import times
from virtfleet.api.names import MigrationPhase
from virtfleet.controller.migration.records import Migration

# Seconds between two attempts: the first pause is KubeVirt's, and each failure doubles it.
FIRST_PAUSE, LONGEST_PAUSE = 20.0, 300.0


def newest_first(migrations: Sequence[Migration]) -> list[Migration]:
    return sorted(migrations, key=lambda m: (m.metadata.creation_timestamp, m.name), reverse=True)


def attempt(migrations: Sequence[Migration], *of: str) -> str:
    """For the name of the next one: as many letters as tell it from those before, and the same for whoever knows these.

    Whoever knows less of those before cannot make a second one.
    """
    last = next((m.uid for m in newest_first(migrations)), "")
    return blake2s(" ".join((*of, last)).encode(), digest_size=6).hexdigest()


def failures(migrations: Sequence[Migration], ours: Callable[[Migration], bool]) -> list[Migration]:
    """Those of ours that have failed since the VM last moved, the newest first."""
    failed = []
    for migration in newest_first(migrations):
        if migration.phase == MigrationPhase.SUCCEEDED:
            break
        if migration.phase == MigrationPhase.FAILED and ours(migration):
            failed.append(migration)
    return failed


def pause_ends(failed: Sequence[Migration], setback: float = 0.0) -> float:
    """Until when the VM is left alone; `setback` is when an attempt came to nothing of which no object is left."""
    last = max([setback, *(times.seconds(migration.since) for migration in failed)])
    return last + min(FIRST_PAUSE * 2.0 ** max(len(failed) - 1, 0), LONGEST_PAUSE) if last else 0.0
