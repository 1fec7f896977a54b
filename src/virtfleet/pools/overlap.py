"""What is doubtful about a set of pools though it is allowed: overlaps, and pools that can never own a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from virtfleet.pools.model import Pool, owner


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two pools that want the same nodes. A node with the labels of `witness` belongs to `first`, not to `second`."""

    first: Pool
    second: Pool
    witness: dict[str, str]


def overlaps(pools: Sequence[Pool]) -> list[Overlap]:
    """Every pair of pools that one node can satisfy, with the labels of such a node."""
    return [
        Overlap(first, second, dict(sorted({**first.node_selector, **second.node_selector}.items())))
        for first, second in combinations(pools, 2)
        if all(second.node_selector.get(key, value) == value for key, value in first.node_selector.items())
    ]


def shadowed(pools: Sequence[Pool]) -> list[Pool]:
    """Pools that own no node whatever its labels, because earlier pools take them all.

    A node with the labels of the pool's selector and no others is the one that is hardest to take away.
    """
    return [pool for i, pool in enumerate(pools) if owner(tuple(pools[:i]), pool.node_selector)]


def shared_devices(pools: Sequence[Pool]) -> list[tuple[Pool, Pool, str]]:
    """Devices that two pools name: VMIs that ask for one always go to the first of them."""
    return [
        (first, second, device)
        for first, second in combinations(pools, 2)
        for device in sorted(first.device_names & second.device_names)
    ]
