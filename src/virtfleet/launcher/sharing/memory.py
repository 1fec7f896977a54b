"""The guest's memory, as its hypervisor lends it: regions by address, mapped here."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Broken(Exception):
    """What guest or hypervisor say does not fit together: nothing more can be believed of that queue."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the guest's memory: where the guest has it, where the hypervisor has it, and where it is here."""

    guest: int
    size: int
    user: int
    view: memoryview


def mapped(fd: int, guest: int, size: int, user: int, offset: int) -> Region:
    """A region out of a file that the hypervisor passed on."""
    try:
        whole = mmap.mmap(fd, offset + size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError, OverflowError) as error:
        raise Broken(f"the guest's memory cannot be mapped: {error}") from None
    return Region(guest, size, user, memoryview(whole)[offset:])


class GuestMemory:
    """All regions."""

    def __init__(self, regions: Sequence[Region] = ()) -> None:
        self._regions = tuple(regions)

    def pieces(self, address: int, length: int) -> Iterator[memoryview]:
        """So many bytes at an address of the guest, which may be in several regions that follow each other."""
        while length:
            region = next((r for r in self._regions if r.guest <= address < r.guest + r.size), None)
            if region is None:
                raise Broken(f"there is no memory at {address:#x}")
            start = address - region.guest
            piece = region.view[start : start + length]
            yield piece
            address, length = address + len(piece), length - len(piece)

    def ring(self, address: int, length: int) -> memoryview:
        """A part of a queue, which the hypervisor gives by its own addresses."""
        for region in self._regions:
            if region.user <= address and address + length <= region.user + region.size:
                start = address - region.user
                return region.view[start : start + length]
        raise Broken(f"there is no memory for a queue at {address:#x}")
