"""Control groups of a launcher: which devices it may open, and CPUs for the threads beside the guest's.

On version 1, and on the mixture of both that many nodes have, devices are allowed by a line in a file. Version 2 has
programs in the kernel for that: those that do not allow a device are replaced by ones that do. CPUs of their own come
to threads by a group below the launcher's, which on version 2 has to be a threaded one; where the kernel refuses that,
threads are bound one by one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from pathlib import Path

from virtfleet.handler.pods import bpf, deviceprogram
from virtfleet.handler.pods.deviceprogram import Device, NotUnderstood

logger = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
_HOUSEKEEPING = "housekeeping"


class ControlGroup:
    """The control groups of one process, by controller; "" is version 2's one for all. `lines` come from /proc."""

    def __init__(self, lines: str, root: Path = ROOT) -> None:
        self._root = root
        self._paths: dict[str, str] = {}
        for line in lines.splitlines():
            _, controllers, path = line.split(":", 2)
            # Of a process that was moved there, the group is the one above.
            self._paths |= dict.fromkeys(controllers.split(","), path.removesuffix(f"/{_HOUSEKEEPING}"))

    def directory(self, controller: str) -> Path | None:
        """Where a controller of version 1 has the group; None where version 2 has that controller."""
        path = self._paths.get(controller)
        return None if path is None else self._root / controller / path.lstrip("/")

    def allow(self, device: str) -> None:
        """Allow a device, as in "c 10:232 rwm"."""
        self._tell("devices.allow", device, _allow)

    def deny(self, device: str) -> None:
        """Take back that a device is allowed."""
        self._tell("devices.deny", device, _deny)

    def _tell(self, file: str, device: str, otherwise: Callable[[Path, Device], None]) -> None:
        if directory := self.directory("devices"):
            (directory / file).write_text(device)
        else:
            otherwise(self._unified, Device.parse(device))

    def processes(self) -> list[int]:
        """The processes of the group."""
        directory = self.directory("devices") or self._unified
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]

    @property
    def _unified(self) -> Path:
        return self._root / self._paths[""].lstrip("/")

    def housekeep(self, threads: Iterable[int], cpus: Set[int]) -> None:
        """Move threads to these CPUs of the group, away from the others."""
        parent = self.directory("cpuset")
        listed = ",".join(map(str, sorted(cpus)))
        if parent is not None:
            members = _housekeeping(parent, listed) / "tasks"
        else:
            try:
                members = _threaded_housekeeping(self._unified, listed) / "cgroup.threads"
            except OSError as error:
                logger.info("no group of threads below %s (%s); they are bound one by one", self._unified, error)
                return _bind(threads, cpus)
        for thread in threads:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                members.write_text(str(thread))


def _allow(group: Path, device: Device) -> None:
    """Have all programs of a group allow a device. Where there is none, everything is allowed.

    Programs that cannot be read or added to are left alone: the runtime was told of the devices of its container, and
    what they say of this one is not known.
    """
    for number, program in _programs(group).items():
        if not program or not deviceprogram.movable(program):
            logger.warning("the device program %d of %s is left as it is: it cannot be added to", number, group)
            continue
        with suppress(NotUnderstood):
            if deviceprogram.permits(program, device):
                continue
        bpf.replace(group, number, deviceprogram.allowing(device, program))


def _deny(group: Path, device: Device) -> None:
    """Have the programs that were added to for a device do without that again."""
    for number, program in _programs(group).items():
        shorter = deviceprogram.without(device, program)
        if shorter != program:
            bpf.replace(group, number, shorter)


def _programs(group: Path) -> dict[int, bytes]:
    """The instructions of a group's programs, by number; none where the kernel keeps them from us."""
    try:
        return {number: bpf.instructions(number) for number in bpf.device_programs(group)}
    except OSError as error:
        logger.warning("whether %s allows its devices is not known: %s", group, error)
        return {}


def _housekeeping(parent: Path, cpus: str) -> Path:
    child = parent / _HOUSEKEEPING
    child.mkdir(exist_ok=True)
    (child / "cpuset.cpus").write_text(cpus)
    (child / "cpuset.mems").write_text((parent / "cpuset.mems").read_text())
    return child


def _threaded_housekeeping(parent: Path, cpus: str) -> Path:
    """The same on version 2. A group with processes has groups below it only if those hold threads of its own."""
    child = parent / _HOUSEKEEPING
    child.mkdir(exist_ok=True)
    try:
        (child / "cgroup.type").write_text("threaded")
        (parent / "cgroup.subtree_control").write_text("+cpuset")
        (child / "cpuset.cpus").write_text(cpus)
    except OSError:
        with suppress(OSError):
            child.rmdir()  # or the launcher's group would stay one of threads for nothing
        raise
    return child


def _bind(threads: Iterable[int], cpus: Set[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cpus)
