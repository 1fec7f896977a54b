"""Sockets that lie in a Pod's volumes, reached without trusting the Pod.

Who runs in a Pod can put anything into its volumes: a link under a socket's name would lead the handler, which is root
on the node, to the socket of another Pod. So nothing below the volume's own directory is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

VOLUMES = "volumes/kubernetes.io~empty-dir"


@contextmanager
def reachable(volume: Path, *names: str) -> Iterator[str]:
    """A path to connect to, good within this context, for the socket under `names` in a volume.

    Raises FileNotFoundError where there is none, and another OSError where something else is in its place.
    """
    with ExitStack() as opened:

        def descend(name: str | Path, flags: int, below: int | None = None) -> int:
            descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=below)
            opened.callback(os.close, descriptor)
            return descriptor

        place = descend(volume, os.O_DIRECTORY)
        for name in names:
            place = descend(name, os.O_NOFOLLOW, place)
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise PermissionError(f"{volume.joinpath(*names)} is not a socket")
        yield f"/proc/self/fd/{place}"
