"""Control groups of a launcher: which devices it may open, and CPUs for the threads beside the guest's.

On version 1, and on the mixture of both that many nodes have, devices are allowed by a line in a file. Version 2 has a
program in the kernel for that, which the container runtime loads with all devices that it was told of; there is nothing
to add here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_HOUSEKEEPING = "housekeeping"


class ControlGroup:
    """The control groups of one process, by controller; "" is version 2's one for all. `lines` come from /proc."""

    def __init__(self, lines: str, root: Path = ROOT) -> None:
        self._root = root
        self._paths: dict[str, str] = {}
        for line in lines.splitlines():
            _, controllers, path = line.split(":", 2)
            self._paths |= dict.fromkeys(controllers.split(","), path)

    def directory(self, controller: str) -> Path | None:
        """Where a controller of version 1 has the group; None where version 2 has that controller."""
        path = self._paths.get(controller)
        if path is None:
            return None
        return self._root / controller / path.lstrip("/")

    def allow(self, device: str) -> None:
        """Allow a device, as in "c 10:232 rwm"."""
        directory = self.directory("devices")
        if directory is not None:
            (directory / "devices.allow").write_text(device)

    def processes(self) -> list[int]:
        """The processes of the group."""
        directory = self.directory("devices") or self._root / self._paths[""].lstrip("/")
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]

    def housekeep(self, threads: Iterable[int], cpus: str) -> None:
        """Move threads to these CPUs of the group, away from the others."""
        parent = self.directory("cpuset")
        if parent is None:
            return
        child = parent / _HOUSEKEEPING
        child.mkdir(exist_ok=True)
        (child / "cpuset.cpus").write_text(cpus)
        (child / "cpuset.mems").write_text((parent / "cpuset.mems").read_text())
        for thread in threads:
            (child / "tasks").write_text(str(thread))
