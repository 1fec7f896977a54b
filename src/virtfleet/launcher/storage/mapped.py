"""Files for guests that are containers, whose users have other numbers on the node than in the guest.

What the launcher makes itself is given to those numbers; what it is lent, such as a claim, keeps its owners and is
mounted such that the guest's users appear as them.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from virtfleet.hypervisors.containers import IDS
from virtfleet.launcher.failure import Failure

_NOBODY: Final = 65534
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # system calls, of the same number on every architecture
_CLONE, _EMPTY_PATH, _MOVE_EMPTY_PATH, _IDMAP = 0x1, 0x1000, 0x4, 0x100000
_HERE: Final = -100  # AT_FDCWD
_LIMIT: Final = 30.0  # seconds
_COVERS: Final = ("proc", "sysfs", "tmpfs", "devtmpfs")


def uncover() -> None:
    """Undo what a container runtime has put over parts of /proc and /sys, and that /sys is for reading only.

    The kernel lets nobody have a fresh /proc or /sys of his own, as a guest needs, who does not see a whole one. What
    was hidden belongs to the node's root, who is not among the guest's users.
    """
    for path in reversed(covers(Path("/proc/self/mountinfo").read_text())):
        subprocess.run(["umount", path], check=True, timeout=_LIMIT)
    subprocess.run(["mount", "-o", "remount,rw", "/sys"], check=True, timeout=_LIMIT)


def covers(mountinfo: str) -> list[str]:
    """Mounts over parts of /proc and /sys, from the kernel's table."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        path = before.split()[4]
        if path.startswith(("/proc/", "/sys/")) and not path.startswith("/sys/fs/") and after.split()[0] in _COVERS:
            mounts.append(path)
    return mounts


def copy(source: str, target: str, first: int) -> None:
    """Copy an image's files, with the guest's numbers for their owners. Devices and pipes are left out, and /disk."""
    if os.path.exists(target):
        return
    new = f"{target}.new"
    from shutil import copytree, rmtree  # which most launchers need not hold in memory

    rmtree(new, ignore_errors=True)
    copytree(source, new, symlinks=True, ignore=lambda where, names: _left_out(source, where, names))
    for directory, directories, files in os.walk(new):
        for name in ("", *directories, *files):
            path = os.path.join(directory, name)
            _give(path, os.lstat(os.path.join(source, os.path.relpath(path, new))), first)
    os.replace(new, target)


def _left_out(top: str, directory: str, names: list[str]) -> set[str]:
    kinds = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    special = {n for n, mode in kinds.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))}
    return special | {"disk"} if directory == top else special  # a disk for machines in the same image


def _give(path: str, was: os.stat_result, first: int) -> None:
    owner, group = (number if number < IDS else _NOBODY for number in (was.st_uid, was.st_gid))
    os.lchown(path, first + owner, first + group)
    if stat.S_ISREG(was.st_mode) and was.st_mode & (stat.S_ISUID | stat.S_ISGID):
        os.chmod(path, stat.S_IMODE(was.st_mode))  # chown has taken these bits away


def mount(source: str, target: str, first: int) -> None:
    """Mount a directory such that its owners 0, 1, 2… are the guest's."""
    if os.path.ismount(target):
        return
    os.makedirs(target, exist_ok=True)
    with _users(first) as users:
        import ctypes  # costs memory, and most launchers do not need it

        tree = _call(_OPEN_TREE, _HERE, source.encode(), _CLONE | os.O_CLOEXEC)
        try:
            attributes = (ctypes.c_uint64 * 4)(_IDMAP, 0, 0, users)
            _call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes))
            _call(_MOVE_MOUNT, tree, b"", _HERE, target.encode(), _MOVE_EMPTY_PATH)
        finally:
            os.close(tree)


def _call(number: int, *arguments: object) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@contextmanager
def _users(first: int) -> Iterator[int]:
    """A user namespace with the guest's numbers, for as long as it takes."""
    command = ["unshare", "--user", "--", "sh", "-c", "echo; read _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None
        if not inside.stdout.readline():
            raise Failure("no user namespace can be made here, which containers need")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{inside.pid}/{kind}").write_text(f"0 {first} {IDS}")
        users = os.open(f"/proc/{inside.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield users
        finally:
            os.close(users)
