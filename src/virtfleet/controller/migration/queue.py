"""Which of the migrations that wait may begin. Pure.

Limits are those of KubeVirt: so many at one time in the cluster, so many away from one node. Both are counted before
anything is made for a migration, so that one that waits for its node takes no place that another could use.

A higher priority is a head start in time and not a place in front of everybody: whoever waits is overtaken only by
those who came within the head start, so nobody waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from virtfleet.api.migration import MigrationConfiguration

# Seconds by which a migration of a priority is taken to have come earlier than it did.
HEAD_STARTS = {"system-critical": 3600.0, "user-triggered": 1800.0, "system-maintenance": 600.0}


@dataclass(frozen=True, slots=True)
class Place:
    """A migration in the queue, or one that has left it."""

    key: str
    vmi: str
    node: str
    """Where its VM runs."""
    since: float = 0.0
    priority: str = ""
    rejected: bool = False
    """Its Pod was refused for a quota; it is tried where nobody else could use the place."""

    @property
    def order(self) -> tuple[bool, float, str]:
        return self.rejected, self.since - HEAD_STARTS.get(self.priority, HEAD_STARTS["user-triggered"]), self.key


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations there may be at one time."""

    cluster: int
    node: int

    @classmethod
    def of(cls, how: MigrationConfiguration) -> Limits:
        return cls(how.parallel_migrations_per_cluster or 0, how.parallel_outbound_migrations_per_node or 0)


def next_to_begin(waiting: Iterable[Place], active: Iterable[Place], limits: Limits) -> list[str]:
    """Keys of those that may begin now, first come first served. A VM has one migration at a time."""
    active = list(active)
    busy, outbound = {place.vmi for place in active}, Counter(place.node for place in active)
    room, chosen = limits.cluster - len(active), []
    for place in sorted(waiting, key=lambda place: place.order):
        if room <= 0:
            break
        first = place.vmi not in busy
        busy.add(place.vmi)
        if first and outbound[place.node] < limits.node:
            outbound[place.node] += 1
            room -= 1
            chosen.append(place.key)
    return chosen
