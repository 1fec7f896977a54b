"""Paths inside a container's or an image's tree, resolved as if that tree were `/`.

A tree written by somebody else may hold a symbolic link to /etc/shadow of the machine; opening a path of it the
ordinary way would follow the link out. The kernel resolves it inside instead (openat2 with RESOLVE_IN_ROOT).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OPENAT2 = 437  # the same on every architecture
_RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x10, 0x02

_libc = ctypes.CDLL(None, use_errno=True)


def open_inside(root: Path, path: str, flags: int = os.O_RDONLY, mode: int = 0) -> int:
    """A file descriptor for `path` below `root`; no link leads out of it."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        fd = int(_libc.syscall(_OPENAT2, top, os.fsencode(path.lstrip("/") or "."), how, len(how)))
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), f"{root}/{path.lstrip('/')}")
        return fd
    finally:
        os.close(top)


@contextmanager
def opened(root: Path, path: str, flags: int = os.O_RDONLY, mode: int = 0) -> Iterator[int]:
    fd = open_inside(root, path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def read_inside(root: Path, path: str, limit: int = 1 << 20) -> bytes:
    """The first `limit` bytes of a file below `root`. A FIFO there must not hang the reader."""
    with opened(root, path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        return os.read(fd, limit)


def make_dirs_inside(root: Path, path: str, mode: int = 0o755) -> None:
    """Like mkdir -p, below `root`."""
    done = ""
    for part in Path(path).parts:
        if part in ("/", "."):
            continue
        with opened(root, done or ".", os.O_PATH | os.O_DIRECTORY) as parent, suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=parent)
        done = f"{done}/{part}"
