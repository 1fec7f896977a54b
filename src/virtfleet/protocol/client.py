"""The handler's side of the command socket."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import virtfleet
from virtfleet.protocol import wire
from virtfleet.protocol.messages import Hello, Message, Request, Screenshot, Update, Watch, answer_to
from virtfleet.work import tasks

A = TypeVar("A", bound=Message)
# What a launcher may say at once and then each second, where a message counts one and one more for each 4 KiB.
_BURST, _RATE, _PIECE = 512.0, 16.0, 4096
_PATIENCE = 5.0  # seconds of waiting after which one that goes on is no longer listened to


class LauncherGone(Exception):
    """The connection has ended."""


class Refused(Exception):
    """The launcher could not do what was asked; the message is its own."""


class Allowance:
    """What a launcher may still say now. One that says more is not listened to until it has earned it.

    What it said meanwhile waits in its socket, and its end behind that: so one that does not stop is broken off with.
    """

    def __init__(self) -> None:
        self._left = _BURST
        self._at = time.monotonic()
        self._waited = 0.0

    def spend(self, length: int) -> float:
        """Take the cost of a message off; the answer is how many seconds to wait before the next one is read."""
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._at) * _RATE) - 1 - length // _PIECE
        self._at = now
        pause = max(0.0, -self._left / _RATE)
        self._waited = self._waited + pause if pause else 0.0
        if self._waited > _PATIENCE:
            raise wire.WireError("the launcher says more than a handler listens to")
        return pause


class Client:
    """A connection to one launcher. Several requests may be under way at once.

    Nothing that the launcher says is believed to be short, seldom, or what it should be.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self.version = hello.version
        self.vmi = hello.vmi
        """UID of the VMI that the launcher says it is for; empty where it does not say."""
        self.requests = frozenset(hello.requests)
        """What it understands."""
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[wire.Answer | None]] = {}
        self._pictures: set[int] = set()  # requests for one
        self._broken: wire.WireError | None = None
        self._receiving = tasks.start(self._receive(), "answers of a launcher", expected=(wire.WireError, OSError))

    @classmethod
    async def connect(cls, place: Path | socket.socket) -> Client:
        """Connect, unless that is done, and greet. Raises OSError where nobody listens, WireError at no launcher."""
        path, made = (place, None) if isinstance(place, Path) else (None, place)
        reader, writer = await asyncio.open_unix_connection(path, sock=made)
        try:
            writer.write(wire.encode(Hello(version=virtfleet.__version__), wire.REQUEST))
            hello = await wire.receive(reader, Hello, wire.ANSWER)
            if hello is None:
                raise wire.WireError("the launcher closed the connection without a greeting")
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer, hello)

    async def call(self, request: Request[A]) -> A:
        """One request, one answer."""
        number, answers = self._send(request)
        try:
            return self._read(await answers.get(), answer_to(type(request)))
        finally:
            self._waiting.pop(number, None)
            self._pictures.discard(number)

    async def watch(self) -> AsyncIterator[Update]:
        """The state now, then every change; ends when the launcher does."""
        number, answers = self._send(Watch())
        try:
            while (received := await answers.get()) is not None:
                yield self._read(received, Update)
            if self._broken:
                raise self._broken
        finally:
            self._waiting.pop(number, None)

    def _send(self, request: Request[A]) -> tuple[int, asyncio.Queue[wire.Answer | None]]:
        name = type(request).__name__
        if name not in self.requests:
            raise Refused(f"this launcher (version {self.version}) does not know {name}")
        if self._receiving.done():
            raise LauncherGone("the launcher has closed the connection")
        number = next(self._numbers)
        queue: asyncio.Queue[wire.Answer | None] = asyncio.Queue()
        self._writer.write(wire.encode(wire.Request(number, name, wire.body(request)), wire.REQUEST))
        self._waiting[number] = queue
        if isinstance(request, Screenshot):
            self._pictures.add(number)
        return number, queue

    @staticmethod
    def _read(received: wire.Answer | None, kind: type[A]) -> A:
        if received is None:
            raise LauncherGone("the launcher has closed the connection")
        if received.error:
            raise Refused(received.error)
        return wire.decode(received.body, kind)

    async def _receive(self) -> None:
        allowance = Allowance()
        try:
            while (data := await wire.frame(self._reader, self._longest)) is not None:
                answer = wire.decode(data, wire.Answer)
                if queue := self._waiting.get(answer.id):
                    queue.put_nowait(answer)
                if answer.id in self._pictures:
                    self._pictures.discard(answer.id)  # it was asked for, once
                elif pause := allowance.spend(len(data)):
                    await asyncio.sleep(pause)
        except wire.WireError as error:
            self._broken = error
        finally:
            for queue in self._waiting.values():
                queue.put_nowait(None)

    def _longest(self) -> int:
        return wire.PICTURE if self._pictures else wire.ANSWER

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
