"""The files of a shared directory, as the guest knows them: by number, held open, so that nothing is taken for another.

The guest names one step at a time, and no step leads out: a name has no slash and is neither `.` nor `..`, links are
never followed (the guest follows them itself, in its own tree), and only ordinary files and directories are opened, so
that devices and pipes in the volume are left alone. Everything is done with the rights of this process.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Final

from virtfleet.launcher.sharing import wire

MOST: Final = 1 << 17
"""Files that a guest may know at a time, and that it may have open."""
_FOUND: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENED: Final = os.O_ACCMODE | os.O_TRUNC | os.O_APPEND | os.O_SYNC | os.O_DSYNC
"""What a guest may say about how to open a file; the rest is its own kernel's business."""


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(slots=True)
class Inode:
    """A file that the guest knows."""

    fd: int
    kind: int
    key: tuple[int, int]
    known: int = 0
    """How often the guest was told of it."""

    @property
    def path(self) -> str:
        """Leads to this very file, whatever became of its name."""
        return f"/proc/self/fd/{self.fd}"


@dataclass(slots=True)
class Handle:
    """A file or a directory that the guest has open."""

    fd: int
    directory: bool = False
    names: list[tuple[bytes, int, int]] = field(default_factory=list)
    """Of a directory: what was in it when it was read from its beginning."""


class Tree:
    """What is below one directory. `most` bounds what the guest can have us hold."""

    def __init__(self, directory: str, *, most: int = MOST) -> None:
        self._root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._most = most
        self._nodes: dict[int, Inode] = {}
        self._by_key: dict[tuple[int, int], int] = {}
        self._handles: dict[int, Handle] = {}
        self._next = wire.ROOT + 1
        self.forget_all()

    def forget_all(self) -> None:
        """A guest begins, or has ended."""
        for fd in [*(node.fd for node in self._nodes.values()), *(handle.fd for handle in self._handles.values())]:
            os.close(fd)
        st = os.stat(self._root)
        root = Inode(os.dup(self._root), wire.kind_of(st.st_mode), (st.st_dev, st.st_ino), 1)
        self._nodes, self._by_key, self._handles = {wire.ROOT: root}, {root.key: wire.ROOT}, {}

    # What the guest knows.

    def node(self, number: int) -> Inode:
        if number not in self._nodes:
            raise refusal(errno.ESTALE)
        return self._nodes[number]

    def find(self, parent: int, name: bytes) -> tuple[int, os.stat_result]:
        """The number of what a name stands for; the guest knows it once more."""
        fd = os.open(step(name), _FOUND, dir_fd=self.node(parent).fd)
        try:
            st = os.stat(fd)
            key = (st.st_dev, st.st_ino)
            number = self._by_key.get(key)
            if number is None:
                if len(self._nodes) >= self._most:
                    raise refusal(errno.ENFILE)
                number, self._next = self._next, self._next + 1
                self._nodes[number] = Inode(fd, wire.kind_of(st.st_mode), key)
                self._by_key[key] = number
                fd = -1
        finally:
            if fd >= 0:
                os.close(fd)
        self._nodes[number].known += 1
        return number, st

    def forget(self, number: int, times: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == wire.ROOT:
            return
        node.known -= times
        if node.known <= 0:
            del self._nodes[number], self._by_key[node.key]
            os.close(node.fd)

    # What it has open.

    def handle(self, number: int, *, directory: bool = False) -> Handle:
        handle = self._handles.get(number)
        if handle is None or handle.directory != directory:
            raise refusal(errno.EBADF)
        return handle

    def open(self, number: int, flags: int) -> int:
        """Open an ordinary file."""
        node = self.node(number)
        if node.kind != stat.S_IFREG:
            raise refusal(errno.EISDIR if node.kind == stat.S_IFDIR else errno.EACCES)
        return self._keep(os.open(node.path, flags & _OPENED | os.O_CLOEXEC))

    def open_directory(self, number: int) -> int:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.node(number).fd)
        return self._keep(fd, directory=True)

    def create(self, parent: int, name: bytes, flags: int, mode: int) -> tuple[int, os.stat_result, int]:
        """Make an ordinary file and open it; one that is there is opened, unless there must be none."""
        try:
            new = flags & _OPENED | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(step(name), new, permissions(mode), dir_fd=self.node(parent).fd)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            number, st = self.find(parent, name)
            try:
                return number, st, self.open(number, flags)
            except OSError:
                self.forget(number, 1)  # the guest is not told of it
                raise
        handle = self._keep(fd)
        try:
            number, st = self.find(parent, name)
        except OSError:
            self.close(handle)
            raise
        return number, st, handle

    def _keep(self, fd: int, *, directory: bool = False) -> int:
        if len(self._handles) >= self._most:
            os.close(fd)
            raise refusal(errno.ENFILE)
        number, self._next = self._next, self._next + 1
        self._handles[number] = Handle(fd, directory)
        return number

    def close(self, number: int) -> None:
        if handle := self._handles.pop(number, None):
            os.close(handle.fd)


def step(name: bytes) -> bytes:
    """A name that leads from a directory to what is in it, and nowhere else."""
    if not name or b"/" in name or name in (b".", b".."):
        raise refusal(errno.EINVAL)
    return name


def permissions(mode: int, *, directory: bool = False) -> int:
    """Who may do what, as the guest wants it.

    All files belong to this process' user, so a program that is to run as its owner would run as that one, wherever on
    the node the volume is mounted.
    """
    if mode & stat.S_ISUID or (mode & stat.S_ISGID and not directory):
        raise refusal(errno.EPERM)
    return mode & 0o7777
