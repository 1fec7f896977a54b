"""The guest's memory, as its hypervisor lends it, and a queue of requests in it: virtio's split ring.

The guest writes all of it, at any time. What counts is read once; every index, length and address is checked.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

LARGEST_QUEUE: Final = 1024
LARGEST_REQUEST: Final = (1 << 20) + (64 << 10)
"""Bytes of a request, and of its answer: what a write or a read may have, and what goes with it."""
_NEXT, _WRITE, _INDIRECT = 1, 2, 4
_DESCRIPTOR: Final = struct.Struct("<QIHH")
_LONGEST_CHAIN: Final = 2 * LARGEST_QUEUE
_ONE: Final = (1).to_bytes(8, "little")
_fence = threading.Lock()


def _ordered() -> None:
    """What was written before is seen before what is written after, also by the guest's processors."""
    with _fence:
        pass


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


@dataclass(slots=True)
class Request:
    """What the guest says, and where it expects the answer."""

    head: int
    readable: list[memoryview] = field(default_factory=list)
    writable: list[memoryview] = field(default_factory=list)


class Queue:
    """One ring. It runs while the hypervisor has it enabled and has said where it is."""

    def __init__(self) -> None:
        self.size = 0
        self.next = 0
        self.enabled = False
        self.kick = self.call = -1
        self.addresses = (0, 0, 0)
        """Of its three parts, as the hypervisor has them: descriptors, what is used, what is available."""
        self._memory = GuestMemory()
        self._descriptors = self._available = self._used = self._done = memoryview(b"")

    def resize(self, size: int) -> None:
        if not 0 < size <= LARGEST_QUEUE or size & (size - 1):
            raise Broken(f"a queue of {size} entries")
        self.size = size

    def begin(self, memory: GuestMemory) -> None:
        """Find the ring in the guest's memory, also when that was mapped anew."""
        descriptors, used, available = self.addresses
        self._memory = memory
        self._descriptors = memory.ring(descriptors, 16 * self.size)
        self._available = memory.ring(available, 4 + 2 * self.size).cast("H")
        done = memory.ring(used, 4 + 8 * self.size)
        self._used, self._done = done.cast("H"), done[4:].cast("I")

    @property
    def runs(self) -> bool:
        return self.enabled and self.kick >= 0 and bool(self._descriptors)

    def stop(self) -> int:
        """No more requests are taken; the answer is where to go on."""
        self.enabled = False
        self._descriptors = self._available = self._used = self._done = memoryview(b"")
        self._memory = GuestMemory()
        self.hear(-1)
        self.tell(-1)
        return self.next

    def hear(self, fd: int) -> None:
        """The guest says by this event that there are requests."""
        _close(self.kick)
        self.kick = fd

    def tell(self, fd: int) -> None:
        """The guest hears by this event that there are answers."""
        _close(self.call)
        self.call = fd

    def take(self) -> Request | None:
        """The next request, if there is one."""
        waiting = (self._available[1] - self.next) & 0xFFFF
        if not waiting:
            return None
        if waiting > self.size:
            raise Broken(f"{waiting} requests in a queue of {self.size}")
        _ordered()
        request = self._read(self._available[2 + self.next % self.size])
        self.next = (self.next + 1) & 0xFFFF
        return request

    def _read(self, head: int) -> Request:
        request = Request(head)
        table: bytes | memoryview = self._descriptors
        count, index, total, indirect = self.size, head, 0, False
        for _ in range(_LONGEST_CHAIN):
            if index >= count:
                raise Broken(f"descriptor {index} of {count}")
            address, length, flags, following = _DESCRIPTOR.unpack_from(table, index * 16)
            if flags & _INDIRECT:
                if indirect or not 0 < length <= 16 * _LONGEST_CHAIN:
                    raise Broken("a table of descriptors that is none")
                table = b"".join(self._memory.pieces(address, length))
                count, index, indirect = length // 16, 0, True
                continue
            total += length
            if total > 2 * LARGEST_REQUEST:
                raise Broken(f"a request of more than {total} bytes")
            if flags & _WRITE:
                request.writable += self._memory.pieces(address, length)
            elif request.writable:
                raise Broken("a question after the answer")
            else:
                request.readable += self._memory.pieces(address, length)
            if not flags & _NEXT:
                return request
            index = following
        raise Broken("a request without end")

    def give(self, request: Request, written: int) -> None:
        """Hand an answer of so many bytes to the guest, and say so: always, for it may have just begun to wait."""
        place = self._used[1] % self.size
        self._done[2 * place], self._done[2 * place + 1] = request.head, written
        _ordered()
        self._used[1] = (self._used[1] + 1) & 0xFFFF
        if self.call >= 0:
            os.write(self.call, _ONE)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def part(pieces: list[memoryview], start: int, length: int) -> list[memoryview]:
    """So many bytes from a place on, or all that there are, of what is in several pieces."""
    covered = []
    for piece in pieces:
        if within := piece[start : start + length]:
            covered.append(within)
            length -= len(within)
        start = max(0, start - len(piece))
    return covered


def scattered(pieces: list[memoryview], data: bytes) -> None:
    """Write over several pieces; there is room."""
    for piece in pieces:
        part, data = data[: len(piece)], data[len(piece) :]
        piece[: len(part)] = part
        if not data:
            return
