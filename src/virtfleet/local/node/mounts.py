"""Mounts of this machine: the few system calls that volumes, root filesystems and node roots need.

Everything mounted here lies in directories of a node that hold nothing else, so whatever a killed process left behind
is found again by its path in the mount table and nothing has to be remembered. The cluster's directory itself, and
what somebody mounted elsewhere in it (a disk for volumes, say), is never ours.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from pathlib import Path

RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
REMOUNT, BIND, SHARED = 32, 4096, 1 << 20
_DETACH, _NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, fstype: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        source.encode(), os.fsencode(target), fstype.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {fstype or 'bind'} {source} ({data}): {os.strerror(code)}", str(target))


def bind(source: Path, target: Path, *, readonly: bool = False) -> None:
    mount(str(source), target, flags=BIND)
    if readonly:
        mount("", target, flags=BIND | REMOUNT | RDONLY)


def overlay(lowers: list[Path], target: Path, *, upper: Path | None = None, work: Path | None = None) -> None:
    """Stack `lowers` (topmost first), writable into `upper` where there is one."""
    if upper is None and len(lowers) == 1:
        bind(lowers[0], target, readonly=True)
        return
    options = "lowerdir=" + ":".join(str(path) for path in lowers)
    if upper is not None:
        options += f",upperdir={upper},workdir={work}"
    mount("overlay", target, "overlay", 0, options)


def share(path: Path) -> None:
    """Make `path` a mount of its own that passes mounts on to whoever binds it; once."""
    if str(path) not in below(path):
        bind(path, path)
    mount("", path, flags=SHARED)


def unshare(path: Path) -> None:
    """Undo `share`, and take away what was mounted inside meanwhile. A disk that was there before stays."""
    for point, root in _table(path):
        # What was bound to itself shows in the table as a directory of that name in its file system.
        if point != str(path) or Path(root).name == path.name:
            unmount(point)


def unmount(target: str | Path) -> None:
    """Lazily, so that a busy mount cannot hold up a teardown; a target that is no mount is fine."""
    result, code = _libc.umount2(os.fsencode(target), _DETACH | _NOFOLLOW), ctypes.get_errno()
    if result and code not in (errno.EINVAL, errno.ENOENT):
        raise OSError(code, f"unmount: {os.strerror(code)}", str(target))


def below(path: Path) -> list[str]:
    """Mount points at or below `path`, the latest first: the order in which they can be unmounted."""
    return [point for point, _ in _table(path)]


def _table(path: Path) -> list[tuple[str, str]]:
    """Of each mount, where it is, and which directory of its file system is seen there."""
    with open("/proc/self/mountinfo") as table:
        rows = [line.split(" ", 5) for line in table]
    mounted = [(_unescape(row[4]), _unescape(row[3])) for row in reversed(rows)]
    return [(point, root) for point, root in mounted if f"{point}/".startswith(f"{path}/")]


def unmount_below(path: Path) -> None:
    for point in below(path):
        unmount(point)


def remove_tree(path: Path) -> None:
    """Delete a directory tree with whatever is mounted in it left alone."""
    unmount_below(path)
    if below(path):
        raise OSError(errno.EBUSY, "still has mounts in it", str(path))
    shutil.rmtree(path, ignore_errors=True)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
