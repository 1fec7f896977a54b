"""Addresses of guests on vsock (CIDs): no two VMIs of the cluster have the same, so that a VM keeps it when it moves.

Where to begin to look follows from the VMI's UID: a controller that takes over gives a VMI the address that the one
before may have been about to write.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from virtfleet.controller.records.instance import Instance
from virtfleet.kube.cache import Cache

LOWEST, HIGHEST = 3, (1 << 32) - 2  # those below are of hosts, and the last one means any
INDEX = "cid"


class NoneLeft(Exception):
    """Every address is some VMI's."""


def index(vmi: Instance) -> list[str]:
    """An index of VMIs: the address that a VMI has."""
    return [] if vmi.status.vsock_cid is None else [str(vmi.status.vsock_cid)]


def free(uid: str, taken: Callable[[int], object], highest: int = HIGHEST) -> int:
    """The address for a VMI: that of its UID, or the next one that is not taken."""
    count = highest - LOWEST + 1
    begin = int.from_bytes(sha256(uid.encode()).digest()[:8])
    for step in range(count):
        cid = LOWEST + (begin + step) % count
        if not taken(cid):
            return cid
    raise NoneLeft(f"all {count} vsock addresses are in use; delete VMIs that have one")


class Cids:
    """Gives addresses. Those in use are what the VMIs' status says, and what is on its way there."""

    def __init__(self, instances: Cache[Instance], highest: int = HIGHEST) -> None:
        self._instances = instances
        self._highest = highest
        self._promised: dict[str, int] = {}

    def of(self, vmi: Instance) -> int:
        """The address of a VMI, the same whenever it is asked for."""
        if vmi.status.vsock_cid is not None:
            return vmi.status.vsock_cid
        if vmi.key not in self._promised:
            promised = {*self._promised.values()}
            self._promised[vmi.key] = free(
                vmi.uid, lambda cid: cid in promised or self._instances.by_index(INDEX, str(cid)), self._highest
            )
        return self._promised[vmi.key]

    def forget(self, key: str) -> None:
        """A VMI is gone."""
        self._promised.pop(key, None)
