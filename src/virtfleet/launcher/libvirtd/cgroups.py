"""Control groups for hypervisors whose guests are containers: a tree that begins with the launcher's own group.

libvirt makes groups for the guests at the top of the tree that it sees. So the launcher, which is root then, sees no
more than its own part: the guests' groups lie inside the Pod's, count towards its limits, and go with it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from virtfleet.launcher.failure import Failure

_ROOT = Path("/sys/fs/cgroup")
_UNIFIED = "cgroup2"
_NEW_NAMESPACE = 0x02000000  # CLONE_NEWCGROUP
_OURS = "launcher"
_LIMIT = 60.0  # seconds that a command has
_LAST_BREATH, _RETRY = 2.0, 0.02  # seconds


class Hierarchy(NamedTuple):
    """A mounted tree of groups."""

    path: str
    kind: str
    options: str


def enclose() -> None:
    """Make the launcher's own group the top of every tree, for it and for all that it starts."""
    import ctypes  # costs memory, and most launchers do not need it

    trees = usable(hierarchies(Path("/proc/self/mountinfo").read_text()))
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NAMESPACE):
        reason = os.strerror(ctypes.get_errno())
        raise Failure(f"no control groups of its own: {reason}; the container needs the capability SYS_ADMIN")
    for hierarchy, wanted in trees.items():
        subprocess.run(["umount", hierarchy.path], check=True, timeout=_LIMIT)
        if wanted:
            options = ("-t", hierarchy.kind, "-o", hierarchy.options, hierarchy.kind)
            subprocess.run(["mount", *options, hierarchy.path], check=True, timeout=_LIMIT)
            if hierarchy.kind == _UNIFIED:
                _leave_the_top(Path(hierarchy.path))


def join(name: str) -> None:
    """Move to a group of this name inside the present ones, as a container runtime would do it."""
    for group in _own_groups():
        with suppress(OSError):  # a hierarchy that has nothing to share out
            own = group / name
            own.mkdir()
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (group / setting).exists():
                    (own / setting).write_text((group / setting).read_text())
            (own / "cgroup.procs").write_text("0")


def remove(name: str) -> None:
    """Remove the groups that `join` made, with those in them, as soon as the kernel has let go of the last process."""
    end = time.monotonic() + _LAST_BREATH
    for group in _own_groups():
        while (group / name).exists():
            for directory, _, _ in os.walk(group / name, topdown=False):
                with suppress(OSError):
                    os.rmdir(directory)
            if time.monotonic() > end:
                break
            time.sleep(_RETRY)


def _own_groups() -> Iterator[Path]:
    """The groups that this process is in, one in each tree."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        tree = _ROOT / (controllers.removeprefix("name=") or "unified")
        yield (tree if tree.is_dir() else _ROOT) / path.lstrip("/")


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The trees that are mounted, from the kernel's table."""
    trees = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind.startswith("cgroup"):
            # An agent that is called when groups become empty is the node's affair, and refused inside a namespace.
            kept = ",".join(option for option in options.split(",") if not option.startswith("release_agent="))
            trees.append(Hierarchy(before.split()[4], kind, kept))
    return trees


def usable(trees: list[Hierarchy]) -> dict[Hierarchy, bool]:
    """Whether libvirt shall see each of them: of two halves it would choose the new one, even without controllers.

    Controllers that nobody uses in the other half (hugetlb, say) turn up in this one, so it is asked for what counts.
    """
    hybrid = any(hierarchy.kind != _UNIFIED for hierarchy in trees)
    return {
        h: h.kind != _UNIFIED or not hybrid or "memory" in Path(h.path, "cgroup.controllers").read_text().split()
        for h in trees
    }


def _leave_the_top(unified: Path) -> None:
    """Groups of the new kind share out resources only where no process is in the group above them."""
    ours = unified / _OURS
    ours.mkdir(exist_ok=True)
    for process in (unified / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (ours / "cgroup.procs").write_text(process)
