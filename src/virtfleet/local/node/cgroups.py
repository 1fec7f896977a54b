"""Resources of pods as control groups: the arithmetic, and the removal of what is left.

Containers' groups lie at /virtfleet/<cluster>/<node>/<pod>/<container>, in every hierarchy of cgroup v1 or in the one
of v2; the runtime makes them. What a killed agent left is found by that name.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from virtfleet.api.quantity import Quantity
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import qos_class

ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds
_MIN_SHARES, _MIN_QUOTA = 2, 1_000


def resources(container: Obj) -> dict[str, Any]:
    """linux.resources of the runtime's configuration. The runtime translates shares and quota for v2."""
    declared = container.get("resources") or {}
    requests, limits = declared.get("requests") or {}, declared.get("limits") or {}
    share = Quantity.parse(requests.get("cpu", limits.get("cpu", 0))).milli()
    cpu: dict[str, int] = {"shares": max(_MIN_SHARES, share * 1024 // 1000)}
    if "cpu" in limits:
        quota = Quantity.parse(limits["cpu"]).milli() * _PERIOD // 1000
        cpu |= {"quota": max(_MIN_QUOTA, quota), "period": _PERIOD}
    result: dict[str, Any] = {"cpu": cpu}
    if "memory" in limits:
        result["memory"] = {"limit": Quantity.parse(limits["memory"]).value()}
    pages = [
        {"pageSize": f"{name.removeprefix('hugepages-').removesuffix('i')}B", "limit": Quantity.parse(amount).value()}
        for name, amount in sorted(limits.items())
        if name.startswith("hugepages-")
    ]
    if pages:
        result["hugepageLimits"] = pages
    return result


def oom_score(pod: Obj, container: Obj, memory: int) -> int:
    """Whom the kernel kills first on a machine of `memory` bytes: those that use most beyond what they asked for."""
    match qos_class(pod["spec"]):
        case "Guaranteed":
            return -997
        case "BestEffort":
            return 1000
    declared = container.get("resources") or {}
    request = {**(declared.get("limits") or {}), **(declared.get("requests") or {})}.get("memory", 0)
    return min(max(1000 - 1000 * Quantity.parse(request).value() // memory, 2), 999)


def usage(path: str) -> tuple[int, int] | None:
    """What the group has used of processors so far (nanoseconds), and of memory now: bytes that cannot be had back for
    nothing. None for a group that is gone.
    """
    group = path.lstrip("/")
    try:
        if (unified := ROOT / group / "memory.current").exists():
            time = int((ROOT / group / "cpu.stat").read_text().split()[1]) * 1000
            memory, cached = int(unified.read_text()), "inactive_file"
        else:
            time = int((ROOT / "cpuacct" / group / "cpuacct.usage").read_text())
            unified = ROOT / "memory" / group / "memory.usage_in_bytes"
            memory, cached = int(unified.read_text()), "total_inactive_file"
        stat = dict(line.split() for line in (unified.parent / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return time, max(memory - int(stat.get(cached, 0)), 0)


def kill_all(path: str) -> None:
    """Kill every process in the group `path` and below it."""
    for group in _groups(path):
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def remove(path: str) -> bool:
    """Remove the empty group `path` and those below it, in every hierarchy; False while a process still dies in one."""
    for group in _groups(path):
        with contextlib.suppress(OSError):
            group.rmdir()
    return not any(_groups(path))


def remove_if_empty(path: str) -> None:
    """Remove the group itself, unless another cluster has one in it."""
    for hierarchy in _hierarchies():
        with contextlib.suppress(OSError):
            (hierarchy / path.lstrip("/")).rmdir()


def children(path: str) -> set[str]:
    """The names of the groups directly below `path`, in whichever hierarchy."""
    return {p.name for h in _hierarchies() for p in (h / path.lstrip("/")).glob("*/")}


def _hierarchies() -> list[Path]:
    return [ROOT, *(entry for entry in ROOT.iterdir() if entry.is_dir() and not entry.is_symlink())]


def _groups(path: str) -> Iterator[Path]:
    """The directories of a group in all hierarchies, the deepest first."""
    for hierarchy in _hierarchies():
        for directory, _, _ in os.walk(hierarchy / path.lstrip("/"), topdown=False):
            yield Path(directory)
