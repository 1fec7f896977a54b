"""The processes of a local cluster's containers, found from outside by their control groups, and what they use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from virtfleet.local import directory

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process in a container, or a container's monitor."""

    pid: int
    node: str
    pod: str
    """UID of the Pod; "" for monitors."""
    program: str
    """The module of one of our own programs, else the name of the executable."""


def of_cluster(data: Path) -> list[Process]:
    """Everything in the containers of the cluster in this directory, and what watches over them."""
    group = re.compile(rf":/virtfleet/{directory.cluster_name(data)}/([^/]+)/([^/]+)/")
    monitor = re.compile(rf"^conmon .*--bundle {re.escape(str(data))}/nodes/([^/]+)/")
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if inside := group.search((entry / "cgroup").read_text()):
                    found.append(Process(int(entry.name), inside[1], inside[2], _program(words)))
                elif watching := monitor.match(" ".join(words)):
                    found.append(Process(int(entry.name), watching[1], "", "conmon"))
    return found


def _program(words: list[str]) -> str:
    if "-m" in words and words[words.index("-m") + 1].startswith("virtfleet."):
        return words[words.index("-m") + 1].removeprefix("virtfleet.")
    return os.path.basename(words[0])


def resident(processes: Iterable[Process]) -> float:
    """MiB in memory, shared pages counted by each."""
    return sum(_kib(process, "status", "VmRSS") for process in processes) / 1024


def proportional(processes: Iterable[Process]) -> float:
    """MiB in memory, shared pages divided among those that share them."""
    return sum(_kib(process, "smaps_rollup", "Pss") for process in processes) / 1024


def cpu_seconds(processes: Iterable[Process]) -> float:
    """CPU time used so far."""
    return sum(used(process.pid)[0] for process in processes)


def used(pid: int) -> tuple[float, float]:
    """CPU seconds of a process itself, and of its children that have ended; none where it has."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, (int(fields[13]) + int(fields[14])) / _TICKS
    return 0.0, 0.0


def _kib(process: Process, file: str, field: str) -> int:
    with suppress(OSError):
        match = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{process.pid}/{file}").read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0
