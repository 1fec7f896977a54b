"""Bytes of a migration, from another handler to a launcher's connection and back, by a thread for each connection.

A thread because of the amount (a guest's whole memory would leave an event loop no time for anything else), and because
of whose the launcher's end is: what is done to a descriptor that a launcher has sent can take for ever, and then only
the thread of its own migration waits.

Nothing is read that cannot be held, so that a slow side slows the other one down; and each direction ends by itself.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)

_HELD = 256 << 10  # bytes of each direction
_NOTHING_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Relay:
    """Between `far`, which does not block, and `near`. Both are closed at its end, which `ended` is called at."""

    def __init__(self, far: socket.socket, near: socket.socket, name: str, ended: Callable[[Relay], None]) -> None:
        self._far = far
        self._near = near
        self._name = name
        self._ended = ended
        self._stopping = self._closing = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=f"migration {name}", daemon=True).start()

    def stop(self) -> None:
        """End it; the thread notices."""
        with self._lock:
            if not self._closing:
                self._stopping = True
                for connection in (self._far, self._near):
                    with suppress(OSError):  # an SSLSocket's own method would disturb its reader
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _run(self) -> None:
        directions = (_Direction(self._far, self._near), _Direction(self._near, self._far))
        try:
            while not self._stopping and not all(direction.over for direction in directions):
                did = [direction.step() for direction in directions]
                if not any(did):
                    _wait(directions)
        except OSError as error:
            logger.info("%s: a connection ends: %s", self._name, error)
        finally:
            with self._lock:  # their numbers may soon be others'
                self._closing = True
            for connection in (self._far, self._near):
                with suppress(OSError):
                    connection.close()
            self._ended(self)


class _Direction:
    """One way."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.over = False
        self._read = _reader(source)
        self._write = _writer(sink)
        self._held = memoryview(bytearray(_HELD))
        self._begin = self._end = 0
        self._ended = False  # nothing more comes

    @property
    def reads(self) -> bool:
        return not self._ended and self._end < _HELD

    @property
    def writes(self) -> bool:
        return self._begin < self._end

    def step(self) -> bool:
        """Read as much as can be held, then write as much as is taken; whether anything was done."""
        was = (self._begin, self._end, self._ended)
        with suppress(*_NOTHING_NOW):
            while self.reads:
                count = self._read(self._held[self._end :])
                self._end += count
                self._ended = count == 0
        with suppress(*_NOTHING_NOW):
            while self.writes:
                self._begin += self._write(self._held[self._begin : self._end])
        done = (self._begin, self._end, self._ended) != was
        if not self.writes:
            self._begin = self._end = 0
            if self._ended and not self.over:
                self.over = True
                with suppress(OSError):
                    socket.socket.shutdown(self.sink, socket.SHUT_WR)
        return done


def _reader(connection: socket.socket) -> Callable[[memoryview], int]:
    if isinstance(connection, ssl.SSLSocket):
        return connection.recv_into
    # Whether a launcher's connection blocks is up to the launcher, at any moment.
    return lambda into: connection.recv_into(into, 0, socket.MSG_DONTWAIT)


def _writer(connection: socket.socket) -> Callable[[memoryview], int]:
    if isinstance(connection, ssl.SSLSocket):
        return connection.send
    return lambda data: connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _wait(directions: tuple[_Direction, _Direction]) -> None:
    """Until something can be done. A connection of which nothing is wanted is not watched: its end would not wait."""
    wanted: dict[socket.socket, int] = {}
    for direction in directions:
        if direction.reads:
            wanted[direction.source] = wanted.get(direction.source, 0) | select.POLLIN
        if direction.writes:
            wanted[direction.sink] = wanted.get(direction.sink, 0) | select.POLLOUT
    poll = select.poll()
    for connection, events in wanted.items():
        poll.register(connection, events)
    poll.poll()
