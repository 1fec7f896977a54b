"""Requests of a guest about the files of a shared directory, and the answers to them."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Callable
from functools import partialmethod
from typing import Final, NamedTuple

from virtfleet.launcher.sharing import wire
from virtfleet.launcher.sharing.queue import LARGEST_REQUEST, Request, part, scattered
from virtfleet.launcher.sharing.tree import Tree, permissions, refusal, step
from virtfleet.launcher.sharing.wire import Op, Set

_LONGEST_ARGUMENTS: Final = 64 << 10
_MOST_WAITING: Final = 64


class Asked(NamedTuple):
    """One request: of whom and about what, its arguments, and how many bytes of an answer there is room for."""

    node: int
    uid: int
    arguments: bytes
    room: int


class Service:
    """The shared directory of one guest. The method that answers a request has its name.

    With `as_root` the guest is told that root owns what this process' user owns, for guests do not follow the
    links of others in a directory like that of a service account.
    """

    def __init__(self, tree: Tree, *, as_root: bool = False) -> None:
        self._tree = tree
        self._as_root = as_root
        self._user = os.getuid()
        self._answers: dict[int, Callable[[Asked], bytes]] = {
            op: getattr(self, f"_{op.name.lower()}") for op in Op if op not in (Op.READ, Op.WRITE)
        }

    def answer(self, request: Request) -> int:
        """Answer one request in the guest's memory; how many bytes were written."""
        header = b"".join(part(request.readable, 0, wire.IN_HEADER.size))
        if len(header) < wire.IN_HEADER.size:
            return 0  # nobody to answer
        _, op, unique, node, uid, *_ = wire.IN_HEADER.unpack(header)
        room = sum(map(len, request.writable)) - wire.OUT_HEADER.size
        question = part(request.readable, wire.IN_HEADER.size, 2 * LARGEST_REQUEST)
        space = part(request.writable, wire.OUT_HEADER.size, 2 * LARGEST_REQUEST)
        error = written = 0
        try:
            if op == Op.READ:
                written = self._read_into(question, space)
            else:
                said = self._written(question) if op == Op.WRITE else self._said(op, node, uid, question, room)
                if len(said) > room:
                    raise refusal(errno.EIO)
                scattered(space, said)
                written = len(said)
        except OSError as failed:
            error = failed.errno or errno.EIO
        except (struct.error, ValueError, OverflowError):
            error = errno.EINVAL
        if op in wire.UNANSWERED or room < 0:
            return 0
        written = 0 if error else written
        scattered(request.writable, wire.OUT_HEADER.pack(wire.OUT_HEADER.size + written, -error, unique))
        return wire.OUT_HEADER.size + written

    def _said(self, op: int, node: int, uid: int, question: list[memoryview], room: int) -> bytes:
        do = self._answers.get(op)
        if do is None:
            raise refusal(errno.ENOSYS)
        return do(Asked(node, uid, b"".join(part(question, 0, _LONGEST_ARGUMENTS)), room))

    # The guest begins and ends.

    def _init(self, asked: Asked) -> bytes:
        major, _, read_ahead, flags = wire.INIT_IN.unpack_from(asked.arguments)
        if major != wire.MAJOR:
            raise refusal(errno.EPROTO)
        self._tree.forget_all()
        pages = wire.LARGEST_DATA // os.sysconf("SC_PAGE_SIZE")
        kept = flags & wire.WANTED_FLAGS
        limits = (_MOST_WAITING, _MOST_WAITING * 3 // 4, wire.LARGEST_DATA, 1, pages, 0, 0)
        return wire.INIT_OUT.pack(wire.MAJOR, wire.MINOR, read_ahead, kept, *limits)

    def _destroy(self, asked: Asked) -> bytes:
        self._tree.forget_all()
        return b""

    # Names.

    def _known(self, st: os.stat_result) -> bytes:
        return wire.attributes(st, 0 if self._as_root and st.st_uid == self._user else st.st_uid)

    def _found(self, parent: int, name: bytes) -> bytes:
        number, st = self._tree.find(parent, name)
        return wire.entry(number, self._known(st))

    def _lookup(self, asked: Asked) -> bytes:
        [name] = wire.names(asked.arguments, 1)
        return self._found(asked.node, name)

    def _interrupt(self, asked: Asked) -> bytes:
        return b""

    def _forget(self, asked: Asked) -> bytes:
        self._tree.forget(asked.node, *wire.FORGET_IN.unpack_from(asked.arguments))
        return b""

    def _batch_forget(self, asked: Asked) -> bytes:
        count, _ = wire.BATCH_FORGET_IN.unpack_from(asked.arguments)
        rest = asked.arguments[wire.BATCH_FORGET_IN.size :][: count * wire.FORGET_ONE.size]
        for number, times in wire.FORGET_ONE.iter_unpack(rest):
            self._tree.forget(number, times)
        return b""

    def _may_make(self, asked: Asked) -> int:
        """Where something is made. What is made is this process' user's, which only root of the guest may want."""
        if asked.uid not in (0, self._user):
            raise refusal(errno.EPERM)
        return self._tree.node(asked.node).fd

    def _symlink(self, asked: Asked) -> bytes:
        name, target = wire.names(asked.arguments, 2)
        os.symlink(target, step(name), dir_fd=self._may_make(asked))
        return self._found(asked.node, name)

    def _mknod(self, asked: Asked) -> bytes:
        mode, *_ = wire.MKNOD_IN.unpack_from(asked.arguments)
        [name] = wire.names(asked.arguments[wire.MKNOD_IN.size :], 1)
        kind = wire.kind_of(mode) or stat.S_IFREG
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):  # a device of the node is no file of a guest
            raise refusal(errno.EPERM)
        os.mknod(step(name), kind | permissions(mode), dir_fd=self._may_make(asked))
        return self._found(asked.node, name)

    def _mkdir(self, asked: Asked) -> bytes:
        mode, _ = wire.MKDIR_IN.unpack_from(asked.arguments)
        [name] = wire.names(asked.arguments[wire.MKDIR_IN.size :], 1)
        os.mkdir(step(name), permissions(mode, directory=True), dir_fd=self._may_make(asked))
        return self._found(asked.node, name)

    def _remove(self, how: Callable[..., None], asked: Asked) -> bytes:
        [name] = wire.names(asked.arguments, 1)
        how(step(name), dir_fd=self._tree.node(asked.node).fd)
        return b""

    _unlink = partialmethod(_remove, os.unlink)
    _rmdir = partialmethod(_remove, os.rmdir)

    def _rename(self, asked: Asked) -> bytes:
        (into,) = wire.RENAME_IN.unpack_from(asked.arguments)
        old, new = wire.names(asked.arguments[wire.RENAME_IN.size :], 2)
        source, target = self._tree.node(asked.node).fd, self._tree.node(into).fd
        os.rename(step(old), step(new), src_dir_fd=source, dst_dir_fd=target)
        return b""

    def _link(self, asked: Asked) -> bytes:
        (number,) = wire.LINK_IN.unpack_from(asked.arguments)
        [name] = wire.names(asked.arguments[wire.LINK_IN.size :], 1)
        os.link(self._tree.node(number).path, step(name), dst_dir_fd=self._tree.node(asked.node).fd)
        return self._found(asked.node, name)

    def _readlink(self, asked: Asked) -> bytes:
        return os.readlink(b"", dir_fd=self._tree.node(asked.node).fd)

    # Attributes.

    def _getattr(self, asked: Asked) -> bytes:
        flags, _, number = wire.GETATTR_IN.unpack_from(asked.arguments)
        by_handle = flags & wire.BY_HANDLE
        fd = self._tree.handle(number).fd if by_handle else self._tree.node(asked.node).fd
        return wire.attributes_answer(self._known(os.stat(fd)))

    def _setattr(self, asked: Asked) -> bytes:
        said = wire.SETATTR_IN.unpack_from(asked.arguments)
        wanted, _, number, size, *_ = said
        seconds, parts, (mode, _, uid, gid) = said[5:7], said[8:10], said[11:15]
        node = self._tree.node(asked.node)
        if wanted & Set.MODE:
            if node.kind == stat.S_IFLNK:
                raise refusal(errno.EOPNOTSUPP)
            os.chmod(node.path, permissions(mode, directory=node.kind == stat.S_IFDIR))
        if wanted & (Set.UID | Set.GID):
            uid = self._user if self._as_root and uid == 0 else uid
            os.chown(node.path, uid if wanted & Set.UID else -1, gid if wanted & Set.GID else -1)
        if wanted & Set.SIZE:
            if wanted & Set.HANDLE:
                os.ftruncate(self._tree.handle(number).fd, size)
            elif node.kind == stat.S_IFREG:
                os.truncate(node.path, size)
            else:
                raise refusal(errno.EINVAL)
        if wanted & (Set.ATIME | Set.MTIME):
            st, now = os.stat(node.fd), time.time_ns()
            moments = [st.st_atime_ns, st.st_mtime_ns]
            for place, (this, at_once) in enumerate(((Set.ATIME, Set.ATIME_NOW), (Set.MTIME, Set.MTIME_NOW))):
                if wanted & this:
                    moment = _signed(seconds[place]) * 1_000_000_000 + parts[place]
                    moments[place] = now if wanted & at_once else moment
            os.utime(node.path, ns=(moments[0], moments[1]))
        return wire.attributes_answer(self._known(os.stat(node.fd)))

    def _statfs(self, asked: Asked) -> bytes:
        usage = os.statvfs(self._tree.node(asked.node).fd)
        room = (usage.f_blocks, usage.f_bfree, usage.f_bavail, usage.f_files, usage.f_ffree)
        return wire.STATFS_OUT.pack(*room, usage.f_bsize, usage.f_namemax, usage.f_frsize, 0)

    # Files.

    def _open(self, asked: Asked) -> bytes:
        flags, _ = wire.OPEN_IN.unpack_from(asked.arguments)
        return wire.OPEN_OUT.pack(self._tree.open(asked.node, flags), 0, 0)

    def _create(self, asked: Asked) -> bytes:
        flags, mode, *_ = wire.CREATE_IN.unpack_from(asked.arguments)
        [name] = wire.names(asked.arguments[wire.CREATE_IN.size :], 1)
        self._may_make(asked)
        number, st, handle = self._tree.create(asked.node, name, flags, mode)
        return wire.entry(number, self._known(st)) + wire.OPEN_OUT.pack(handle, 0, 0)

    def _release(self, asked: Asked) -> bytes:
        self._tree.close(*wire.HANDLE_IN.unpack_from(asked.arguments))
        return b""

    _releasedir = _release

    def _flush(self, asked: Asked) -> bytes:
        handle = self._tree.handle(*wire.HANDLE_IN.unpack_from(asked.arguments))
        os.close(os.dup(handle.fd))  # some file systems say only then what went wrong
        return b""

    def _fsync(self, asked: Asked, *, directory: bool = False) -> bytes:
        number, flags, _ = wire.FSYNC_IN.unpack_from(asked.arguments)
        fd = self._tree.handle(number, directory=directory).fd
        (os.fdatasync if flags & wire.DATA_ONLY and not directory else os.fsync)(fd)
        return b""

    _fsyncdir = partialmethod(_fsync, directory=True)

    def _read_into(self, question: list[memoryview], space: list[memoryview]) -> int:
        """Straight into the guest's memory."""
        number, offset, size, *_ = wire.READ_IN.unpack(b"".join(part(question, 0, wire.READ_IN.size)))
        into = part(space, 0, min(size, wire.LARGEST_DATA))
        return os.preadv(self._tree.handle(number).fd, into, offset) if into else 0

    def _written(self, question: list[memoryview]) -> bytes:
        """Straight from the guest's memory."""
        number, offset, size, *_ = wire.WRITE_IN.unpack(b"".join(part(question, 0, wire.WRITE_IN.size)))
        data = part(question, wire.WRITE_IN.size, min(size, wire.LARGEST_DATA))
        written = os.pwritev(self._tree.handle(number).fd, data, offset) if data else 0
        return wire.WRITE_OUT.pack(written, 0)

    def _fallocate(self, asked: Asked) -> bytes:
        number, offset, length, mode, _ = wire.FALLOCATE_IN.unpack_from(asked.arguments)
        if mode:
            raise refusal(errno.EOPNOTSUPP)
        os.posix_fallocate(self._tree.handle(number).fd, offset, length)
        return b""

    def _lseek(self, asked: Asked) -> bytes:
        number, offset, whence, _ = wire.LSEEK_IN.unpack_from(asked.arguments)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise refusal(errno.EINVAL)
        return wire.LSEEK_OUT.pack(os.lseek(self._tree.handle(number).fd, offset, whence))

    # Directories.

    def _opendir(self, asked: Asked) -> bytes:
        return wire.OPEN_OUT.pack(self._tree.open_directory(asked.node), 0, 0)

    def _readdirplus(self, asked: Asked) -> bytes:
        def told(name: bytes, parent: int) -> bytes:
            try:
                return wire.NO_ENTRY if name in (b".", b"..") else self._found(parent, name)
            except OSError:
                return wire.NO_ENTRY  # gone meanwhile: the guest finds out when it asks

        return self._listed(asked, told)

    def _listed(self, asked: Asked, before: Callable[[bytes, int], bytes]) -> bytes:
        number, offset, size, *_ = wire.READ_IN.unpack_from(asked.arguments)
        handle = self._tree.handle(number, directory=True)
        if offset == 0:
            with os.scandir(handle.fd) as entries:
                inside = [(os.fsencode(e.name), e.inode(), _type(e)) for e in entries]
            here = os.stat(handle.fd)
            handle.names = [(name, here.st_ino, stat.S_IFDIR) for name in (b".", b"..")] + inside
        room, said = min(size, asked.room), bytearray()
        for place in range(offset, len(handle.names)):
            name, ino, kind = handle.names[place]
            entry = wire.dirent(name, ino, kind, place + 1)
            ahead = len(before(b".", asked.node))  # as long for every name
            if len(said) + ahead + len(entry) > room:
                break
            said += before(name, asked.node) + entry
        return bytes(said)

    _readdir = partialmethod(_listed, before=lambda name, at: b"")


def _type(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def _signed(seconds: int) -> int:
    return seconds - (1 << 64) if seconds >> 63 else seconds
