"""Device nodes in the launcher's container, made accessible to its unprivileged user.

Container runtimes make them with the owner that they have on the node, which is root. Only what device plugins and
claims put into the Pod is touched, inside the Pod's own /dev.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from virtfleet.domain.paths import USER
from virtfleet.handler.cgroups import ControlGroup

# Below /dev; a directory stands for all in it.
_NODES = ("net/tun", "vhost-net", "vhost-vsock", "sev", "vfio", "bus/usb")


def grant(process: int, group: ControlGroup, more: Iterable[str]) -> list[str]:
    """Let the launcher's user open its devices, `more` among them. The answer is those that there are."""
    granted = []
    top = os.open(f"/proc/{process}/root/dev", os.O_PATH | os.O_DIRECTORY)
    try:
        for path in (*_NODES, *more):
            for node, status in _devices(top, path):
                os.chown(node, USER, USER, dir_fd=top, follow_symlinks=False)
                kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
                group.allow(f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)} rwm")
                granted.append(node)
    finally:
        os.close(top)
    return granted


def _devices(top: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The device nodes at a path and below it. Links are not followed: they could lead out of the Pod."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(path, dir_fd=top, follow_symlinks=False)
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            yield path, status
        elif stat.S_ISDIR(status.st_mode):
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                names = os.listdir(directory)
            finally:
                os.close(directory)
            for name in sorted(names):
                yield from _devices(top, f"{path}/{name}")
