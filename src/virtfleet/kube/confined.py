"""Paths in a tree that somebody else writes to, opened without being led out of it.

Such a tree may hold a symbolic link to /etc/shadow of the machine; opening a path of it the ordinary way would follow
the link out. The kernel does not (openat2): it either resolves links as if the tree were `/`, or refuses them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OPENAT2 = 437  # the same on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10

INSIDE = _IN_ROOT | _NO_MAGICLINKS
"""Links lead to where they would if the tree were `/`."""
NO_LINKS = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS
"""Links are refused."""
NO_LINKS_NOR_MOUNTS = NO_LINKS | _NO_XDEV
"""So is whatever is mounted in the tree."""

_libc = ctypes.CDLL(None, use_errno=True)


def open_at(tree: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """A file descriptor for `path` below the directory `tree`."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    fd = int(_libc.syscall(_OPENAT2, tree, os.fsencode(path.lstrip("/") or "."), how, len(how)))
    if fd < 0:
        code = ctypes.get_errno()
        why = "this kernel has no openat2; Linux 5.6 or later is needed" if code == errno.ENOSYS else os.strerror(code)
        raise OSError(code, why, path)
    return fd


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """A file descriptor, for as long as the context lasts."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened(root: Path, path: str, flags: int = os.O_RDONLY, mode: int = 0, *, resolve: int = INSIDE) -> Iterator[int]:
    """A file descriptor for `path` below `root`, which itself is trusted."""
    with closing(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
        try:
            fd = open_at(top, path, flags, resolve, mode)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{root}/{path.lstrip('/')}") from None
    with closing(fd):
        yield fd


def read_file(fd: int, limit: int) -> bytes:
    """The first `limit` bytes of an open file. Pipes and devices are refused: they could keep the reader for ever."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise PermissionError(errno.EPERM, "not a regular file")
    content = b""
    while len(content) < limit and (more := os.read(fd, limit - len(content))):
        content += more
    return content


def read_inside(root: Path, path: str, limit: int = 1 << 20) -> bytes:
    """The first `limit` bytes of a file below `root`."""
    with opened(root, path, READ) as fd:
        return read_file(fd, limit)


READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
"""To read what is hopefully a file: opening a pipe must not hang, nor a terminal become ours."""


def make_dirs_inside(root: Path, path: str, mode: int = 0o755) -> None:
    """Like mkdir -p, below `root`; what is new has this very mode."""
    done = ""
    for part in Path(path).parts:
        if part in ("/", "."):
            continue
        with opened(root, done or ".", os.O_PATH | os.O_DIRECTORY) as parent, suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=parent)
            with closing(open_at(parent, part, os.O_RDONLY | os.O_DIRECTORY, NO_LINKS)) as made:
                os.fchmod(made, mode)  # of which mkdir leaves out what this process' mask says
        done = f"{done}/{part}"
