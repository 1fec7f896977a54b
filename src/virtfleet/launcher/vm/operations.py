"""What can be asked of a running VM beside its beginning and its end: each request is a call or two to libvirt."""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import libvirt

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd.connection import Domain, in_a_known_way
from virtfleet.launcher.server import Handlers
from virtfleet.launcher.vm import agent
from virtfleet.protocol import messages as m
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

T = TypeVar("T")
_FREEZE = 30  # seconds: file systems write down what they hold
_THAW_AGAIN = 5.0  # seconds between attempts
_POLL = 0.1  # between questions whether a command in the guest has ended
_SLACK = 2.0  # for libvirt itself
PING_FAILED = "GuestAgentPingFailed"
_LONGEST = 1000  # characters of why
_PNG = b"\x89PNG\r\n\x1a\n"
# Magic number, width, height, largest value; comments may stand between them.
_PIXMAP = re.compile(rb"P6(?:\s+#[^\n]*)*\s+(\d+)(?:\s+#[^\n]*)*\s+(\d+)(?:\s+#[^\n]*)*\s+255\s", re.S)
_CLOCK_TRIES, _CLOCK_AGAIN = 12, 5.0  # seconds between them: an agent takes a while to be back


class Operations:
    """`look` is called when the domain's state is another one now, `tell` with what has happened.

    While `resting` says so, the guest need not answer probes.
    """

    def __init__(
        self,
        domain: Domain,
        look: Callable[[], Awaitable[object]],
        tell: Callable[[m.Event], object],
        resting: Callable[[], bool],
    ) -> None:
        self._domain = domain
        self._look = look
        self._tell = tell
        self._resting = resting
        self._unwell = False
        self._thawing: asyncio.Task[None] | None = None
        self._clock: asyncio.Task[None] | None = None
        self._frozen = False

    def frozen(self, agent: bool) -> bool:
        """Whether file systems of the guest are frozen. One whose agent went away has been started anew."""
        self._frozen = self._frozen and agent
        return self._frozen

    def handlers(self) -> Handlers:
        """What is done on which request."""
        return {
            m.Pause: self._pause,
            m.Unpause: self._unpause,
            m.SoftReboot: self._soft_reboot,
            m.Reset: self._reset,
            m.Freeze: self._freeze,
            m.Unfreeze: self._unfreeze,
            m.Screenshot: self._screenshot,
            m.GetGuestInfo: self._guest_info,
            m.GetStats: self._stats,
            m.GuestPing: self._guest_ping,
            m.GuestExec: self._guest_exec,
        }

    def close(self) -> None:
        self._forget_to_thaw()
        if self._clock:
            self._clock.cancel()

    def set_clock(self) -> None:
        """The guest has stood still, paused or on its way here: it is told the time, if it has an agent to hear it."""
        if self._clock:
            self._clock.cancel()
        self._clock = tasks.start(self._tell_time(), "guest's clock")

    async def _tell_time(self) -> None:
        for _ in range(_CLOCK_TRIES):
            with suppress(Failure):
                await self.ask("guest-set-time", dict, {"time": time.time_ns()})
                return
            await asyncio.sleep(_CLOCK_AGAIN)

    async def _pause(self, _: m.Pause) -> m.Done:
        return await self._done(lambda domain: domain.suspend())

    async def _unpause(self, _: m.Unpause) -> m.Done:
        done = await self._done(lambda domain: domain.resume())
        self.set_clock()
        return done

    async def _soft_reboot(self, _: m.SoftReboot) -> m.Done:
        """By the agent where it answers; libvirt would wait a minute for one that does not."""
        try:
            await self.ask("guest-ping", dict)
            ways: tuple[int, ...] = (0,)
        except Failure as error:
            logger.info("rebooting without the guest's agent: %s", error)
            ways = (libvirt.VIR_DOMAIN_REBOOT_ACPI_POWER_BTN, 0)
        return await self._done(lambda domain: in_a_known_way(domain.reboot, ways))

    async def _reset(self, _: m.Reset) -> m.Done:
        self._frozen = False
        return await self._done(lambda domain: domain.reset(0))

    async def _done(self, call: Callable[[libvirt.virDomain], object]) -> m.Done:
        await self._domain(call)
        await self._look()
        return m.Done()

    async def _freeze(self, request: m.Freeze) -> m.Done:
        self._forget_to_thaw()
        try:
            if not await self._is_frozen():  # the agent takes a second request for a mistake
                await self.ask("guest-fsfreeze-freeze", int, seconds=_FREEZE)
        except Failure:  # perhaps it is only late, and nobody would thaw what it freezes then
            self._thawing = tasks.keep(partial(self._thaw_after, 0), "thaw")
            raise
        if request.timeout_seconds:
            self._thawing = tasks.keep(partial(self._thaw_after, request.timeout_seconds), "thaw")
        return await self._now(frozen=True)

    async def _now(self, *, frozen: bool) -> m.Done:
        self._frozen = frozen
        await self._look()
        return m.Done()

    async def _thaw_after(self, seconds: int) -> None:
        await asyncio.sleep(seconds)
        logger.warning("nobody thawed the guest's file systems; it is done now")
        while True:
            try:
                await self._thaw()
                break
            except Failure as error:
                logger.warning("the guest's file systems cannot be thawed yet: %s", error)
                await asyncio.sleep(_THAW_AGAIN)
        with suppress(Failure):  # the state is looked at again soon
            await self._now(frozen=False)

    async def _unfreeze(self, _: m.Unfreeze) -> m.Done:
        self._forget_to_thaw()
        await self._thaw()
        return await self._now(frozen=False)

    async def _thaw(self) -> None:
        await self.ask("guest-fsfreeze-thaw", int, urgent=True)

    async def _is_frozen(self) -> bool:
        return await self.ask("guest-fsfreeze-status", str) == "frozen"

    def _forget_to_thaw(self) -> None:
        if self._thawing:
            self._thawing.cancel()
            self._thawing = None

    async def _screenshot(self, _: m.Screenshot) -> m.Picture:
        def take(connection: libvirt.virConnect) -> bytes:
            stream, received = connection.newStream(), bytearray()
            connection.lookupByName(self._domain.name).screenshot(stream, 0)
            stream.recvAll(lambda _stream, data, _opaque: received.extend(data), None)
            stream.finish()
            return png(bytes(received))

        return m.Picture(png=await self._domain.run(take))

    async def _guest_info(self, _: m.GetGuestInfo) -> m.GuestInfo:
        answer = await agent.info(self.ask)
        with suppress(Failure):  # it may have been frozen before it came here, or thawed by itself
            self._frozen = await self._is_frozen()
        return answer

    async def _stats(self, _: m.GetStats) -> m.Stats:
        return m.Stats(values=await self._domain.stats())

    async def _guest_ping(self, request: m.GuestPing) -> m.Done:
        """For probes. The VM's owner is told of the first that fails: the kubelet tells in the Pod's events only."""
        if self._resting():
            return m.Done()
        try:
            await self.ask("guest-ping", dict, seconds=request.timeout_seconds)
        except Failure as error:
            if not self._unwell:
                self._unwell = True
                self._tell(m.Event(kind=PING_FAILED, detail=str(error)[:_LONGEST]))
            raise
        self._unwell = False
        return m.Done()

    async def _guest_exec(self, request: m.GuestExec) -> m.Executed:
        """For probes, too."""
        if self._resting():
            return m.Executed()
        if not request.command:
            raise Failure("there is no command to run in the guest")
        path, *words = request.command
        began = await self.ask("guest-exec", agent.Process, {"path": path, "arg": words, "capture-output": True})
        status = partial(self.ask, "guest-exec-status", agent.Ended, {"pid": began.pid})
        try:
            async with asyncio.timeout(request.timeout_seconds):
                while not (done := await status()).exited:  # noqa: ASYNC110 (the guest has no events)
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise Failure(f"{path} did not end in the guest within {request.timeout_seconds} s") from None
        code = 128 + done.signal if done.signal else done.exitcode
        return m.Executed(exit_code=code, stdout=done.out_data[: agent.OUTPUT], stderr=done.err_data[: agent.OUTPUT])

    async def ask(
        self,
        execute: str,
        kind: type[T],
        arguments: dict[str, Any] | None = None,
        *,
        seconds: int = agent.SECONDS,
        urgent: bool = False,
    ) -> T:
        """One question to the guest's agent."""
        return await self._domain.ask_guest(
            lambda domain: agent.command(domain, execute, kind, arguments, seconds=seconds),
            limit=seconds + agent.SECONDS + _SLACK,
            urgent=urgent,
        )


def png(picture: bytes) -> bytes:
    """The picture as PNG: a binary pixmap is converted, a PNG stays what it is."""
    if picture.startswith(_PNG):
        return picture
    header = _PIXMAP.match(picture)
    if not header:
        raise Failure("the hypervisor sent a picture in a format that is not known")
    width, height = int(header[1]), int(header[2])
    row = 3 * width
    pixels = memoryview(picture)[header.end() :]
    # Each row begins with the number of its filter; 0 is none.
    lines = b"".join(b"\0" + bytes(pixels[y * row : (y + 1) * row]) for y in range(height))
    size = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _PNG + _chunk(b"IHDR", size) + _chunk(b"IDAT", zlib.compress(lines, 1)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
