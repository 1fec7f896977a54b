"""The handler's side of the command socket."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import virtfleet
from virtfleet.launcher import wire
from virtfleet.launcher.messages import Hello, Message, Request, Update, Watch, answer_to
from virtfleet.work import tasks

A = TypeVar("A", bound=Message)


class LauncherGone(Exception):
    """The connection has ended."""


class Refused(Exception):
    """The launcher could not do what was asked; the message is its own."""


class Client:
    """A connection to one launcher. Several requests may be under way at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self.version = hello.version
        self.vmi = hello.vmi
        """UID of the VMI that the launcher says it is for; empty where it does not say."""
        self._known = frozenset(hello.requests)
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[wire.Answer | None]] = {}
        self._receiving = tasks.start(self._receive(), "answers of a launcher", expected=(wire.WireError, OSError))

    @classmethod
    async def connect(cls, socket: Path | str) -> Client:
        """Connect and greet. Raises OSError where nobody listens, WireError where it is no launcher."""
        reader, writer = await asyncio.open_unix_connection(socket, limit=1 << 20)
        try:
            writer.write(wire.encode(Hello(version=virtfleet.__version__)))
            hello = await wire.receive(reader, Hello)
            if hello is None:
                raise wire.WireError(f"{socket}: the launcher closed the connection")
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer, hello)

    def understands(self, request: type[Request[A]]) -> bool:
        """Whether this launcher, which may be older than we are, knows a request."""
        return request.__name__ in self._known

    async def call(self, request: Request[A]) -> A:
        """One request, one answer."""
        number, answers = self._send(request)
        try:
            return self._read(await answers.get(), answer_to(type(request)))
        finally:
            self._waiting.pop(number, None)

    async def watch(self) -> AsyncIterator[Update]:
        """The state now, then every change; ends when the launcher does."""
        number, answers = self._send(Watch())
        try:
            while (received := await answers.get()) is not None:
                yield self._read(received, Update)
        finally:
            self._waiting.pop(number, None)

    def _send(self, request: Request[A]) -> tuple[int, asyncio.Queue[wire.Answer | None]]:
        name = type(request).__name__
        if name not in self._known:
            raise Refused(f"this launcher (version {self.version}) does not know {name}")
        if self._receiving.done():
            raise LauncherGone("the launcher has closed the connection")
        number = next(self._numbers)
        queue: asyncio.Queue[wire.Answer | None] = asyncio.Queue()
        self._waiting[number] = queue
        self._writer.write(wire.encode(wire.Request(number, name, wire.body(request))))
        return number, queue

    @staticmethod
    def _read(received: wire.Answer | None, kind: type[A]) -> A:
        if received is None:
            raise LauncherGone("the launcher has closed the connection")
        if received.error:
            raise Refused(received.error)
        return wire.decode(received.body, kind)

    async def _receive(self) -> None:
        try:
            while (answer := await wire.receive(self._reader, wire.Answer)) is not None:
                if queue := self._waiting.get(answer.id):
                    queue.put_nowait(answer)
        finally:
            for queue in self._waiting.values():
                queue.put_nowait(None)

    async def close(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
