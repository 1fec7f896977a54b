"""The launcher's connection to libvirt, which outlives the daemon, and the way over it to the one domain.

libvirt's calls block and its events need a loop of their own: calls run on a few threads, the event loop on another
one, and what the events say is handed over to asyncio. When the daemon dies, the connection is opened again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import libvirt
import msgspec

from virtfleet.launcher.failure import Failure, explained
from virtfleet.protocol.messages import Event
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

T = TypeVar("T")
_THREADS = 2  # one may wait for a slow device, and one is left for a kill
_MOST_LOST = 8  # of them, to calls that do not come back
LIMIT = 45.0  # seconds that a call has; libvirt itself gives up waiting for another call after 30
_RETRY = 0.02
_PATIENCE = 30.0
_UNKNOWN_WAY = (libvirt.VIR_ERR_INVALID_ARG, libvirt.VIR_ERR_OPERATION_UNSUPPORTED)
_KEEPALIVE = (5, 3)  # seconds between questions, and how many may stay unanswered

# Events that carry a meaning of their own; the others only say that something is different now.
_EVENTS = (
    (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, ""),
    (libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, "Reboot"),
    (libvirt.VIR_DOMAIN_EVENT_ID_WATCHDOG, "Watchdog"),
    (libvirt.VIR_DOMAIN_EVENT_ID_IO_ERROR_REASON, "IOError"),
    (libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, ""),
    (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, ""),
    (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, ""),
    (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, "DeviceRemovalFailed"),
    (libvirt.VIR_DOMAIN_EVENT_ID_BALLOON_CHANGE, ""),
    (libvirt.VIR_DOMAIN_EVENT_ID_MEMORY_FAILURE, "MemoryFailure"),
)


class Threads:
    """So many threads at once, for calls that block; a call waits for its turn.

    A call that has not come back in its time is left to itself, and its thread replaced, so that the next call finds
    one. How many may be lost like that is bounded; beyond it, calls wait for those that were lost.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._pool = ThreadPoolExecutor(number, name)
        self._lost: set[Future[Any]] = set()

    async def run(self, call: Callable[[], T], limit: float) -> T:
        """What the call answers; Failure where it does not within `limit` seconds."""
        pool = self._pool
        future = pool.submit(call)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if future.cancelled():  # it had not begun
                raise Failure(f"libvirt or the guest was busy with other calls for {limit:.0f} s") from None
            self._lose(pool, future)
            raise Failure(f"libvirt did not answer within {limit:.0f} s") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _lose(self, pool: ThreadPoolExecutor, future: Future[Any]) -> None:
        self._lost.add(future)
        future.add_done_callback(self._lost.discard)
        if pool is self._pool and len(self._lost) <= _MOST_LOST:
            self._pool = ThreadPoolExecutor(self._number, self._name)
            pool.shutdown(wait=False)


class Connection:
    """The connection. `changed` is called on the event loop whenever the domain may be different."""

    def __init__(self, uri: str, changed: Callable[[Event | None], None]) -> None:
        self._uri = uri
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(_THREADS, "libvirt")
        self._guest_thread = Threads(1, "guest-agent")
        self._urgent_thread = Threads(1, "guest-agent-urgent")
        self._open: asyncio.Future[libvirt.virConnect] = self._loop.create_future()
        self._keeping = tasks.Owned()

    def start(self) -> None:
        os.environ["LIBVIRT_AUTOSTART"] = "0"  # the daemon is ours to start
        libvirt.registerErrorHandler(lambda *_: None, None)  # errors are raised as well, and logged where they matter
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_events, name="libvirt-events", daemon=True).start()
        self._keeping.add(tasks.keep(self._keep_open, "connection to libvirt"))

    async def stop(self) -> None:
        await self._keeping.end()
        if self._open.done():
            with suppress(libvirt.libvirtError, Failure):
                await self._threads.run(self._open.result().unregisterCloseCallback, _KEEPALIVE[0])
        for threads in (self._threads, self._guest_thread, self._urgent_thread):
            threads.close()

    async def run(self, call: Callable[[libvirt.virConnect], T], *, limit: float = LIMIT) -> T:
        """A call, on a thread. While the daemon is being started again, calls wait."""
        return await self._run(self._threads, call, limit)

    async def ask_guest(self, call: Callable[[libvirt.virConnect], T], *, limit: float, urgent: bool = False) -> T:
        """A call that waits for the guest's agent: one at a time, so that however many ask a guest that does not
        answer, all other calls go on. What is urgent waits for the present question at most.

        Each has a connection of its own: answers to others on the same one can wait until the guest has answered.
        """
        threads = self._urgent_thread if urgent else self._guest_thread
        return await self._run(threads, lambda _: self._on_its_own(call), limit)

    async def apart(self, call: Callable[[libvirt.virConnect], T], *, limit: float) -> T:
        """A call that may last for long, on a thread and a connection of its own."""
        threads = Threads(1, "libvirt-apart")
        try:
            return await self._run(threads, lambda _: self._on_its_own(call), limit)
        finally:
            threads.close()

    def _on_its_own(self, call: Callable[[libvirt.virConnect], T]) -> T:
        connection = libvirt.open(self._uri)
        try:
            _where_supported(connection.setKeepAlive, *_KEEPALIVE)
            return call(connection)
        finally:
            connection.close()

    async def _run(self, threads: Threads, call: Callable[[libvirt.virConnect], T], limit: float) -> T:
        try:
            async with asyncio.timeout(_PATIENCE):
                connection = await asyncio.shield(self._open)
        except TimeoutError:
            raise Failure("libvirt's daemon does not answer") from None
        return await threads.run(partial(call, connection), limit)

    async def _keep_open(self) -> None:
        if self._open.done():
            self._open = self._loop.create_future()
        while True:
            closed = asyncio.Event()
            try:
                connection = await self._threads.run(partial(self._connect, closed), LIMIT)
            except (libvirt.libvirtError, Failure):
                await asyncio.sleep(_RETRY)
                continue
            self._open.set_result(connection)
            self._changed(None)
            await closed.wait()
            logger.warning("the connection to libvirt is lost")
            self._open = self._loop.create_future()

    def _connect(self, closed: asyncio.Event) -> libvirt.virConnect:
        connection = libvirt.open(self._uri)
        connection.registerCloseCallback(lambda *_: self._loop.call_soon_threadsafe(closed.set), None)
        _where_supported(connection.setKeepAlive, *_KEEPALIVE)  # there must be somebody at the other end
        for number, kind in _EVENTS:
            happened = partial(self._happened, number, kind)
            _where_supported(connection.domainEventRegisterAny, None, number, happened, None)
        return connection

    def _happened(self, number: int, kind: str, _connection: object, _domain: object, *arguments: Any) -> None:
        event = event_of(number, kind, arguments[:-1])  # the last one is ours, and None
        with suppress(RuntimeError):  # the loop has ended, and with it whoever wanted to know
            self._loop.call_soon_threadsafe(self._changed, event)


class Domain:
    """A domain by its name, whether it is defined yet or not. libvirt's errors come back as failures for people."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self._connection = connection

    async def run(self, call: Callable[[libvirt.virConnect], T], *, limit: float = LIMIT) -> T:
        """A call that needs more than the domain."""
        with _explained():
            return await self._connection.run(call, limit=limit)

    async def __call__(self, call: Callable[[libvirt.virDomain], T]) -> T:
        """A call to the domain."""
        return await self.run(lambda connection: call(connection.lookupByName(self.name)))

    async def ask_guest(self, call: Callable[[libvirt.virDomain], T], *, limit: float, urgent: bool = False) -> T:
        """A call that the guest's agent has to answer."""
        with _explained():
            return await self._connection.ask_guest(
                lambda connection: call(connection.lookupByName(self.name)), limit=limit, urgent=urgent
            )

    async def stats(self) -> dict[str, int | float | str | bool]:
        """What it has used so far, under libvirt's own names."""

        def collect(connection: libvirt.virConnect) -> dict[str, int | float | str | bool]:
            ((_, values),) = connection.domainListGetStats([connection.lookupByName(self.name)])
            return dict(values)

        return await self.run(collect)


def in_a_known_way(call: Callable[[int], object], ways: Sequence[int]) -> None:
    """A call with the first of these flags that the driver knows."""
    for way in ways:
        try:
            call(way)
            return
        except libvirt.libvirtError as error:
            if way == ways[-1] or error.get_error_code() not in _UNKNOWN_WAY:
                raise


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except libvirt.libvirtError as error:
        raise Failure(f"libvirt: {explained(error.get_error_message())}") from error


def event_of(number: int, kind: str, arguments: tuple[object, ...]) -> Event | None:
    """What one of libvirt's events means by itself: of a domain's life, only that its guest has panicked."""
    if number == libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE and arguments[0] == libvirt.VIR_DOMAIN_EVENT_CRASHED:
        return Event(kind="GuestPanicked")
    return Event(kind=kind, detail=" ".join(map(str, arguments))) if kind else None


def ask_vmm(domain: libvirt.virDomain, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Have QEMU carry a command out that libvirt has no call for."""
    import libvirt_qemu  # which launchers of other hypervisors need not hold in memory

    question = msgspec.json.encode({"execute": command, "arguments": arguments}).decode()
    return msgspec.json.decode(libvirt_qemu.qemuMonitorCommand(domain, question, 0), type=dict[str, Any])


def _where_supported(call: Callable[..., object], *arguments: object) -> None:
    """Not every driver has everything; what is done without events is found by looking now and then."""
    try:
        call(*arguments)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED):
            raise
        logger.debug("%s", error)


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
