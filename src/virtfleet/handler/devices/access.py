"""Device nodes in the launcher's container, made accessible to its unprivileged user.

Container runtimes make them with the owner that they have on the node, which is root. Only what device plugins and
claims put into the Pod is touched, inside the Pod's own /dev.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator

from virtfleet.domain.paths import USER
from virtfleet.handler.pods.process import PodProcess
from virtfleet.kube import confined

# Below /dev; a directory stands for all in it.
_NODES = ("net/tun", "vhost-net", "vhost-vsock", "sev", "vfio", "bus/usb")


def grant(launcher: PodProcess, more: Iterable[str]) -> list[str]:
    """Let the launcher's user open its devices, `more` among them. The answer is those that there are."""
    granted, group = [], launcher.group()
    with launcher.opened("dev", os.O_PATH | os.O_DIRECTORY) as top:
        for path in (*_NODES, *more):
            for node, fd in _devices(top, path):
                os.chown(f"/proc/self/fd/{fd}", USER, USER)
                status = os.fstat(fd)
                kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
                group.allow(f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)} rwm")
                granted.append(node)
    return granted


def _devices(top: int, path: str) -> Iterator[tuple[str, int]]:
    """The device nodes at a path and below it, open. Links are not followed: they could lead out of the Pod."""
    try:
        opened = confined.open_at(top, path, os.O_PATH, confined.NO_LINKS)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return
    with confined.closing(opened) as fd:
        mode = os.fstat(fd).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            yield path, fd
        elif stat.S_ISDIR(mode):
            for name in sorted(os.listdir(f"/proc/self/fd/{fd}")):
                yield from _devices(top, f"{path}/{name}")
