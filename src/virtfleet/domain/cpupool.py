"""Which physical CPU each virtual CPU gets, for VMs with CPUs of their own.

Threads of one virtual core should share a physical core, or else at least a NUMA node, so that what the guest believes
of its caches is true. The pool hands out whole cores first, then threads that are left over within one node, and only
where that is allowed threads of different nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.api.traits import Topology
from virtfleet.domain.context import NumaCell
from virtfleet.domain.errors import DomainError


class _Cell:
    """Free threads of one NUMA node: in cores that can hold a whole virtual core, and left over."""

    def __init__(self, cell: NumaCell, cpus: frozenset[int], threads: int) -> None:
        self.threads = threads
        self.whole: list[list[int]] = []
        self.left_over: list[int] = []
        seen: set[int] = set()
        for cpu, siblings in cell.cpus:
            if cpu in seen:
                continue
            core = siblings or (cpu,)
            seen.update(core)
            self._put_back([thread for thread in core if thread in cpus])

    def _put_back(self, core: list[int]) -> None:
        if len(core) >= self.threads:
            self.whole.append(core)
        else:
            self.left_over += core

    def take_core(self) -> list[int]:
        """Threads of one physical core, or nothing."""
        return self._take_whole(self.threads)

    def take_left_over(self, count: int) -> list[int]:
        taken, self.left_over = self.left_over[:count], self.left_over[count:]
        return taken

    def take_thread(self) -> list[int]:
        """One thread, preferably one that is left over."""
        return self.take_left_over(1) or self._take_whole(1)

    def _take_whole(self, count: int) -> list[int]:
        if not self.whole:
            return []
        core = self.whole.pop(0)
        taken, rest = core[:count], core[count:]
        if len(rest) >= self.threads:
            self.whole.insert(0, rest)
        else:
            self.left_over += rest
        return taken


class CpuPool:
    """Free physical threads of a Pod."""

    def __init__(
        self, topology: Topology, cells: Sequence[NumaCell], cpus: Sequence[int], *, may_cross_cells: bool
    ) -> None:
        self._topology = topology
        self._available = len(cpus)
        self._may_cross_cells = may_cross_cells
        self._cells = [_Cell(cell, frozenset(cpus), topology.threads) for cell in cells]

    def take_cores(self) -> list[int]:
        """A physical thread for every virtual CPU, in their order."""
        threads = self._topology.threads
        wanted = self._topology.sockets * self._topology.cores
        taken: list[int] = []
        for cell in self._cells:
            while len(taken) < wanted * threads and (core := cell.take_core()):
                taken += core
        for cell in self._cells:
            while len(taken) < wanted * threads and len(cell.left_over) >= threads:
                taken += cell.take_left_over(threads)
        if self._may_cross_cells:
            for cell in self._cells:
                taken += cell.take_left_over(wanted * threads - len(taken))
        if len(taken) < wanted * threads:
            self._fail(wanted - len(taken) // threads)
        return taken

    def take_thread(self, purpose: str) -> int:
        """One more physical thread."""
        for cell in self._cells:
            if thread := cell.take_thread():
                return thread[0]
        raise DomainError(f"no CPU is left for {purpose}")

    def _fail(self, missing: int) -> None:
        if self._may_cross_cells or self._available < self._topology.vcpus:
            raise DomainError(f"not enough exclusive threads provided, could not fit {missing} core(s)")
        raise DomainError(f"could not fit {missing} core(s) without crossing numa cell boundaries for individual cores")
