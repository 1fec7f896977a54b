"""The launcher's side of the command socket."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

import virtfleet
from virtfleet.launcher.failure import Failure
from virtfleet.protocol import wire
from virtfleet.protocol.messages import Hello, Message, Screenshot, Update, Watch
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
Handlers = Mapping[type[Message], Callable[[Any], Awaitable[Message]]]
_UNHEARD = 64  # updates that wait for a slow listener
_FAREWELL = 5.0  # seconds for everybody to take the last answers
_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


class Updates:
    """The present state, and those who want to know of every change."""

    def __init__(self) -> None:
        self.latest = Update()
        self._followers: set[asyncio.Queue[Update | None]] = set()

    def publish(self, update: Update) -> None:
        self.latest = Update(state=update.state)
        for queue in self._followers:
            _put(queue, update)

    @contextmanager
    def followed(self) -> Iterator[asyncio.Queue[Update | None]]:
        """A queue that begins with the present state; None in it is the end."""
        queue: asyncio.Queue[Update | None] = asyncio.Queue(_UNHEARD)
        queue.put_nowait(self.latest)
        self._followers.add(queue)
        try:
            yield queue
        finally:
            self._followers.discard(queue)

    def end(self) -> None:
        for queue in self._followers:
            _put(queue, None)


def _put(queue: asyncio.Queue[Update | None], update: Update | None) -> None:
    """Whoever listens slowly misses what is oldest: each update says how everything is now."""
    if queue.full():
        logger.warning("nobody listens; not sent: %s", queue.get_nowait())
    queue.put_nowait(update)


class Server:
    """Answers requests. Each runs as a task of its own: a slow guest agent must not hold up a kill."""

    def __init__(self, path: Path, handlers: Handlers, updates: Updates, *, vmi: str = "") -> None:
        self._path = path
        self._vmi = vmi
        self._handlers = {request.__name__: (request, handler) for request, handler in handlers.items()}
        self._updates = updates
        self._server: asyncio.Server | None = None
        self._connections = tasks.Owned()
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. The socket appears under its name only when connections are accepted."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, temporary)
        temporary.chmod(0o600)
        os.replace(temporary, self._path)

    async def close(self) -> None:
        """Finish what is being answered, give watchers the last state, then end every connection."""
        self._path.unlink(missing_ok=True)
        self._updates.end()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_FAREWELL)
        if self._server:
            self._server.close()
        await self._connections.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        running = tasks.Owned()
        try:
            known = [*self._handlers, Watch.__name__]
            hello = Hello(version=virtfleet.__version__, requests=known, vmi=self._vmi)
            writer.write(wire.encode(hello, wire.ANSWER))
            if await wire.receive(reader, Hello, wire.REQUEST) is None:
                return
            while (request := await wire.receive(reader, wire.Request, wire.REQUEST)) is not None:
                task = tasks.start(self._answer(request, writer), f"answer: {request.name}")
                running.add(task)
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
        except (wire.WireError, ConnectionError) as error:
            logger.warning("a connection to the command socket ended: %s", error)
        finally:
            running.cancel()
            writer.close()

    async def _answer(self, request: wire.Request, writer: asyncio.StreamWriter) -> None:
        if request.name == Watch.__name__:
            await self._watch(request.id, writer)
            return
        longest = wire.PICTURE if request.name == Screenshot.__name__ else wire.ANSWER
        try:
            kind, handler = self._handlers[request.name]
            answer = wire.body(fit(await handler(wire.decode(request.body, kind))))
            frame = wire.encode(wire.Answer(request.id, answer), longest)
        except KeyError:
            frame = _refusal(request, f"this launcher does not know {request.name}")
        except (Failure, wire.WireError) as error:
            frame = _refusal(request, str(error))
        except Exception as error:
            logger.exception("%s failed", request.name)
            frame = _refusal(request, f"{type(error).__name__}: {error}")
        with suppress(ConnectionError):  # whoever asked has gone
            writer.write(frame)
            await writer.drain()

    async def _watch(self, number: int, writer: asyncio.StreamWriter) -> None:
        with self._updates.followed() as queue, suppress(ConnectionError):
            while (update := await queue.get()) is not None:
                writer.write(wire.encode(wire.Answer(number, wire.body(fit(update)), more=True), wire.ANSWER))
                await writer.drain()


def _refusal(request: wire.Request, why: str) -> bytes:
    cut = why if len(why) <= wire.LONGEST_ERROR else f"{why[: wire.LONGEST_ERROR - 1]}…"
    return wire.encode(wire.Answer(request.id, error=cut), wire.ANSWER)


def fit(message: M) -> M:
    """The message, with everything in it cut to the bounds of its type, beyond which a handler takes none.

    A guest may have more file systems than anybody wants to know of, and a name in it may be a novel.
    """
    fitting: M = _fit(message, type(message))
    return fitting


def _fit(value: Any, kind: Any) -> Any:
    most = None
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        most = next((meta.max_length for meta in metas if isinstance(meta, msgspec.Meta)), None)
    if isinstance(value, Message):
        parts = {name: _fit(getattr(value, name), hint) for name, hint in _hints(type(value)).items()}
        return msgspec.structs.replace(value, **parts)
    if isinstance(value, str) and get_origin(kind) is Union:
        return _fit(value, next(each for each in get_args(kind) if get_origin(each) is Annotated))
    if isinstance(value, list):
        (item,) = get_args(kind)
        return [_fit(each, item) for each in _first(value, most)]
    if isinstance(value, dict):
        key, item = get_args(kind)
        return {_fit(k, key): _fit(v, item) for k, v in _first(list(value.items()), most)}
    if isinstance(value, str | bytes) and most is not None and len(value) > most:
        return value[:most] if isinstance(value, bytes) else f"{value[: most - 1]}…"
    return value


def _first(values: list[Any], most: int | None) -> list[Any]:
    if most is None or len(values) <= most:
        return values
    logger.warning("of %d things the first %d are sent, from %r on", len(values), most, values[0])
    return values[:most]
