"""A guest and its hypervisor, as the one who shares a directory sees them: memory, queues, requests."""

from __future__ import annotations

import itertools
import mmap
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from virtfleet.launcher.sharing import wire
from virtfleet.launcher.sharing.device import Device
from virtfleet.launcher.sharing.service import Service
from virtfleet.launcher.sharing.tree import MOST, Tree
from virtfleet.launcher.sharing.wire import Op

SIZE, USER, ENTRIES = 4 << 20, 0x7F0000000000, 16
DESCRIPTORS, AVAILABLE, USED, DATA = 0x1000, 0x2000, 0x3000, 0x10000
PATIENCE = 10.0
_REPLY = 1 << 3


class FuseGuest:
    """Says what it likes, in its memory of two regions."""

    def __init__(self, directory: Path, *, most: int = MOST, as_root: bool = False) -> None:
        self.tree = Tree(str(directory), most=most)
        self.hypervisor, there = socket.socketpair()
        self.hypervisor.settimeout(PATIENCE)
        self.device = Device(there, Service(self.tree, as_root=as_root).answer)
        self.thread = threading.Thread(target=self._serve, args=(there,), daemon=True)
        self.failure: Exception | None = None
        self._fd = os.memfd_create("memory")
        os.truncate(self._fd, SIZE)
        self.memory = mmap.mmap(self._fd, SIZE)
        self.kick, self.call = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        self._asked, self._unique = 0, itertools.count(1)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.device.serve()
            except Exception as error:
                self.failure = error

    def __enter__(self) -> FuseGuest:
        self.thread.start()
        half = SIZE // 2
        regions = struct.pack("<II", 2, 0)
        regions += struct.pack("<QQQQ", 0, half, USER, 0) + struct.pack("<QQQQ", half, half, USER + half, half)
        self.say(5, regions, [self._fd, self._fd])
        self.say(8, struct.pack("<II", 1, ENTRIES))
        self.say(10, struct.pack("<II", 1, 0))
        self.say(9, struct.pack("<IIQQQQ", 1, 0, USER + DESCRIPTORS, USER + USED, USER + AVAILABLE, 0))
        self.say(12, struct.pack("<Q", 1), [self.kick])
        self.say(13, struct.pack("<Q", 1), [self.call])
        self.say(18, struct.pack("<II", 1, 1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.hypervisor.close()
        self.thread.join(PATIENCE)
        for fd in (self.kick, self.call, self._fd):
            os.close(fd)

    def say(self, kind: int, data: bytes, fds: Sequence[int] = (), size: int | None = None) -> None:
        """As the hypervisor; returns when it was heard."""
        header = struct.pack("<III", kind, 1 | _REPLY, len(data) if size is None else size)
        socket.send_fds(self.hypervisor, [header + data], list(fds))
        self.heard()

    def settled(self) -> None:
        """Returns when what was put has been looked at: a word is answered before the queues have their turn."""
        for _ in range(2):
            self.say(3, b"")

    def heard(self) -> bytes:
        answer = self.hypervisor.recv(4096)
        return answer[12:]

    def put(self, descriptors: Sequence[tuple[int, int, int, int]], head: int = 0) -> None:
        """Offer a chain of (address, length, flags, next), which begins with `head`."""
        for place, descriptor in enumerate(descriptors):
            struct.pack_into("<QIHH", self.memory, DESCRIPTORS + 16 * place, *descriptor)
        struct.pack_into("<H", self.memory, AVAILABLE + 4 + 2 * (self._asked % ENTRIES), head)
        self._asked += 1
        struct.pack_into("<H", self.memory, AVAILABLE + 2, self._asked & 0xFFFF)
        os.eventfd_write(self.kick, 1)

    def answered(self) -> bool:
        """Whether an answer has come, for which is waited."""
        ready, _, _ = select.select([self.call], [], [], PATIENCE)
        if ready:
            os.eventfd_read(self.call)
        return struct.unpack_from("<H", self.memory, USED + 2)[0] == self._asked & 0xFFFF

    def ask(self, op: int, node: int, body: bytes = b"", *, uid: int = 0, room: int = 4096) -> tuple[int, bytes]:
        """A request, and its answer: the error's number, and what was said."""
        unique = next(self._unique)
        length = wire.IN_HEADER.size + len(body)
        request = wire.IN_HEADER.pack(length, op, unique, node, uid, 0, 0, 0) + body
        place = SIZE // 2 - length // 2  # over the border of both regions
        self.memory[place : place + length] = request
        answer = wire.OUT_HEADER.size + room
        self.put([(place, length, 1, 1), (DATA, answer, 2, 0)])
        assert self.answered(), self.failure
        size, error, told = wire.OUT_HEADER.unpack_from(self.memory, DATA)
        assert told == unique
        return -error, bytes(self.memory[DATA + wire.OUT_HEADER.size : DATA + size])

    def lookup(self, name: bytes, parent: int = wire.ROOT) -> tuple[int, int]:
        """The error's number, and the node's."""
        error, said = self.ask(Op.LOOKUP, parent, name + b"\0")
        return error, struct.unpack_from("<Q", said)[0] if said else 0

    def read(self, node: int) -> bytes:
        error, said = self.ask(Op.OPEN, node, wire.OPEN_IN.pack(os.O_RDONLY, 0))
        assert error == 0
        handle, _, _ = wire.OPEN_OUT.unpack(said)
        error, said = self.ask(Op.READ, node, wire.READ_IN.pack(handle, 0, 4096, 0, 0, 0, 0))
        assert error == 0
        assert self.ask(Op.RELEASE, node, wire.FSYNC_IN.pack(handle, 0, 0) + bytes(8))[0] == 0
        return said
