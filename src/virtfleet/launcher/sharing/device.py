"""The device's side of vhost-user: the hypervisor says where the guest's memory and queues are, and steps aside."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from virtfleet.launcher.sharing.queue import Broken, GuestMemory, Queue, Request, mapped

logger = logging.getLogger(__name__)

Answer = Callable[[Request], int]
"""Answers a request of the guest in its memory; how many bytes it wrote there."""

_HEADER: Final = struct.Struct("<III")
_VERSION, _REPLY, _NEED_REPLY = 1, 1 << 2, 1 << 3
_LONGEST_MESSAGE: Final = 4096
_MOST_FDS: Final = 8
_QUEUES: Final = 2  # what must go first, and all else
_U64, _STATE = struct.Struct("<Q"), struct.Struct("<II")
_ADDRESSES, _REGION = struct.Struct("<IIQQQQ"), struct.Struct("<QQQQ")
_NO_FD = 1 << 8  # instead of an event
_FEATURES: Final = 1 << 28 | 1 << 30 | 1 << 32  # tables of descriptors, features of the protocol, virtio 1
_PROTOCOL: Final = 1 << 0 | 1 << 3  # several queues, replies to what has none
_TURN: Final = 64  # requests of the guest before the hypervisor is listened to again


class Hangup(Exception):
    """The hypervisor has closed the connection."""


class Device:
    """One connection to a hypervisor."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self.used = False
        """Whether a guest has begun to use it."""
        self._connection = connection
        self._answer = answer
        self._memory = GuestMemory()
        self._queues = [Queue() for _ in range(_QUEUES)]
        self._busy: set[Queue] = set()  # there may be requests
        self._messages: dict[int, Callable[[bytes, list[int]], bytes | None]] = {
            **dict.fromkeys((2, 3, 4, 14, 16), lambda data, fds: None),
            1: lambda data, fds: _U64.pack(_FEATURES),
            5: self._remember,
            8: self._resize,
            9: self._place,
            10: self._set_next,
            11: self._stop,
            12: self._hear,
            13: self._tell,
            15: lambda data, fds: _U64.pack(_PROTOCOL),
            17: lambda data, fds: _U64.pack(_QUEUES),
            18: self._enable,
        }

    def serve(self) -> None:
        """Until the hypervisor hangs up."""
        try:
            while True:
                self._turn()
        except Hangup:
            return
        finally:
            for queue in self._queues:
                queue.stop()

    def _turn(self) -> None:
        """Wait for a word of the hypervisor or of the guest, unless there is work left, and act on it."""
        poll = select.poll()
        running = {queue.kick: queue for queue in self._queues if queue.runs}
        for fd in (self._connection.fileno(), *running):
            poll.register(fd, select.POLLIN)
        self._busy = {queue for queue in self._busy if queue.runs}
        ready = [fd for fd, _ in poll.poll(0 if self._busy else None)]
        for fd in ready:
            if fd in running:
                with suppress(BlockingIOError):
                    os.read(fd, 8)
                self._busy.add(running[fd])
        if self._connection.fileno() in ready:
            self._listen()
        self._busy = {queue for queue in self._busy if queue.runs and self._work(queue)}

    def _work(self, queue: Queue) -> bool:
        """Answer some requests; whether there may be more."""
        try:
            for _ in range(_TURN):
                request = queue.take()
                if request is None:
                    return False
                queue.give(request, self._answer(request))
        except Broken as error:
            logger.error("the guest's queue is broken and is not read any more: %s", error)
            queue.enabled = False
            return False
        return True

    # What the hypervisor says.

    def _listen(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, _HEADER.size, _MOST_FDS)
        except ConnectionError:
            raise Hangup from None
        data += self._exactly(_HEADER.size - len(data))
        kind, flags, size = _HEADER.unpack(data)
        if size > _LONGEST_MESSAGE:
            raise Broken(f"a message of {size} bytes")
        body = self._exactly(size)
        try:
            do = self._messages.get(kind)
            if do is None:
                logger.warning("the hypervisor says something unknown: %d", kind)
            answer = do(body, fds) if do else None
        except struct.error as error:
            raise Broken(f"message {kind}: {error}") from None
        finally:
            for fd in fds:  # what nobody took
                os.close(fd)
        if answer is None and flags & _NEED_REPLY:
            answer = _U64.pack(0 if do else 1)
        if answer is not None:
            self._connection.sendall(_HEADER.pack(kind, _VERSION | _REPLY, len(answer)) + answer)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = b""
            with suppress(ConnectionError):
                part = self._connection.recv(size - len(data))
            if not part:
                raise Hangup
            data += part
        return data

    def _queue(self, number: int) -> Queue:
        if number >= len(self._queues):
            raise Broken(f"there is no queue {number}")
        return self._queues[number]

    def _remember(self, data: bytes, fds: list[int]) -> None:
        count, _ = _STATE.unpack_from(data)
        if count != len(fds):
            raise Broken(f"{count} regions of memory, {len(fds)} files")
        self._memory = GuestMemory(
            [mapped(fd, *_REGION.unpack_from(data, 8 + number * _REGION.size)) for number, fd in enumerate(fds)]
        )
        for queue in self._queues:
            if queue.runs:
                queue.begin(self._memory)

    def _resize(self, data: bytes, fds: list[int]) -> None:
        number, size = _STATE.unpack(data)
        self._queue(number).resize(size)

    def _place(self, data: bytes, fds: list[int]) -> None:
        number, _, descriptors, used, available, _ = _ADDRESSES.unpack(data)
        queue = self._queue(number)
        queue.addresses = (descriptors, used, available)
        queue.begin(self._memory)

    def _set_next(self, data: bytes, fds: list[int]) -> None:
        number, base = _STATE.unpack(data)
        self._queue(number).next = base & 0xFFFF

    def _stop(self, data: bytes, fds: list[int]) -> bytes:
        number, _ = _STATE.unpack(data)
        return _STATE.pack(number, self._queue(number).stop())

    def _hear(self, data: bytes, fds: list[int]) -> None:
        queue, fd = self._event(data, fds)
        if fd >= 0:
            os.set_blocking(fd, False)
        queue.hear(fd)
        self._busy.add(queue)

    def _tell(self, data: bytes, fds: list[int]) -> None:
        queue, fd = self._event(data, fds)
        queue.tell(fd)

    def _event(self, data: bytes, fds: list[int]) -> tuple[Queue, int]:
        (said,) = _U64.unpack(data)
        queue = self._queue(said & 0xFF)
        return queue, -1 if said & _NO_FD or not fds else fds.pop()

    def _enable(self, data: bytes, fds: list[int]) -> None:
        number, on = _STATE.unpack(data)
        queue = self._queue(number)
        queue.enabled = bool(on)
        self._busy.add(queue)
        self.used = self.used or bool(on)
