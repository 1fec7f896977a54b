"""The arithmetic of rollouts: how many replicas each replica set of a deployment should have next.

Pure functions over numbers; the deployment controller carries out what they say, one step per reconcile, and asks
again when the world has followed. The rules are Kubernetes': never more than replicas + maxSurge pods, never fewer
than replicas - maxUnavailable available ones, unhealthy old pods first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Amount = int | str | None  # a number, or a percentage such as "25%"
Sizes = dict[str, int]  # replica set -> its next size


def scaled(amount: Amount, total: int, *, up: bool) -> int:
    """The number that an amount means out of `total`."""
    if isinstance(amount, str) and amount.endswith("%"):
        percent = int(amount[:-1])
        return -(-percent * total // 100) if up else percent * total // 100
    return int(amount or 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a rolling update may leave the wanted number of replicas."""

    replicas: int
    surge: int = 0
    unavailable: int = 0

    @classmethod
    def of(cls, replicas: int, max_surge: Amount, max_unavailable: Amount) -> Bounds:
        surge = scaled(max_surge, replicas, up=True)
        unavailable = scaled(max_unavailable, replicas, up=False)
        if surge == 0 and unavailable == 0:  # percentages that round to nothing must not block the rollout
            unavailable = 1
        return cls(replicas, surge, min(unavailable, replicas))

    @property
    def least(self) -> int:
        return self.replicas - self.unavailable


class Set(NamedTuple):
    """The numbers of one replica set."""

    name: str
    replicas: int  # as asked for
    available: int = 0


def rolling(bounds: Bounds, new: Set, old: list[Set]) -> Sizes:
    """The next step of a rolling update: grow the new set if there is room, else shrink the old ones."""
    grown = grow(bounds, new, old)
    return {new.name: grown} if grown != new.replicas else shrink(bounds, new, old)


def grow(bounds: Bounds, new: Set, old: list[Set]) -> int:
    """The new set's size as far as the surge allows."""
    room = bounds.surge + bounds.replicas - sum(s.replicas for s in (new, *old))
    return min(bounds.replicas, new.replicas + max(room, 0))


def shrink(bounds: Bounds, new: Set, old: list[Set]) -> Sizes:
    """The old sets' sizes as far as availability allows, in their order and unhealthy replicas before healthy ones."""
    sizes = {s.name: s.replicas for s in old if s.replicas}
    available = {s.name: s.available for s in old}
    room = new.available + sum(sizes.values()) - bounds.least
    for name, replicas in sizes.items():
        unhealthy = min(max(room, 0), max(replicas - available[name], 0))
        sizes[name] -= unhealthy
        room -= unhealthy
    spare = min(room, sum(available[name] for name in sizes) + new.available - bounds.least)
    for name, replicas in sizes.items():
        cut = min(max(spare, 0), replicas)
        sizes[name] -= cut
        spare -= cut
    return {s.name: sizes[s.name] for s in old if s.name in sizes and sizes[s.name] != s.replicas}
