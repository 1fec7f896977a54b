"""CPU time of a local cluster while something happens, by program, processes that end meanwhile included.

A process's own time is read every few milliseconds, until it ends; what lives too short for that is told by the control
group of its container, and by what the children of a node's agent have used.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.processes import of_cluster, used
from virtfleet.local import directory, supervisor

_PAUSE = 0.05
_GROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_SHORT = "commands in containers"


class _Account:
    """Seconds of CPU time so far, by program."""

    def __init__(self, data: Path) -> None:
        self._data = data
        root = next(root for root in _GROUPS if (root / "virtfleet").is_dir())
        self._groups = root / "virtfleet" / directory.cluster_name(data)
        self._children = supervisor.ask(data, op="status")["children"]
        self._inside: dict[int, tuple[str, float]] = {}
        self._outside: dict[tuple[int, str], float] = {}
        self._by_group: dict[Path, float] = {}

    def look(self) -> None:
        for process in of_cluster(self._data):
            name, before = self._inside.get(process.pid, (process.program, 0.0))  # what has ended has no name
            now = max(used(process.pid)[0], before)
            if process.program == "conmon":
                self._outside[process.pid, name] = now
            else:
                self._inside[process.pid] = (name, now)
        for child in self._children:
            kind = "control plane" if child["name"] == "control-plane" else "nodes' agents"
            own, waited = used(child["pid"])
            self._outside[child["pid"], kind] = own
            self._outside[child["pid"], f"runc and other commands of {kind}"] = waited
        for usage in self._groups.glob("*/*/*/cpu.stat"):
            with suppress(OSError, ValueError, IndexError):
                self._by_group[usage] = int(usage.read_text().split()[1]) / 1e6

    def totals(self) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for name, seconds in (*self._inside.values(), *((n, s) for (_, n), s in self._outside.items())):
            found[name] += seconds
        known = sum(seconds for _, seconds in self._inside.values())
        found[_SHORT] = sum(self._by_group.values()) - known
        return found


@asynccontextmanager
async def accounting(data: Path) -> AsyncIterator[dict[str, float]]:
    """Seconds of CPU time by program, which are there at the end of the context."""
    account, spent = _Account(data), dict[str, float]()
    account.look()
    begin = account.totals()

    async def keep() -> None:
        while True:
            await asyncio.sleep(_PAUSE)
            await asyncio.to_thread(account.look)

    looking = asyncio.create_task(keep())
    try:
        yield spent
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        account.look()
        spent |= {name: seconds - begin.get(name, 0) for name, seconds in account.totals().items()}
