"""What can be asked of a running VM beside its beginning and its end: each request is a call or two to libvirt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import libvirt

from virtfleet.launcher import agent, picture
from virtfleet.launcher import messages as m
from virtfleet.launcher.domain import Domain
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.server import Handlers
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_THAW_AGAIN = 5.0  # seconds between attempts


class Operations:
    """`look` is called when the domain's state is another one now."""

    def __init__(self, domain: Domain, look: Callable[[], Awaitable[None]]) -> None:
        self._domain = domain
        self._look = look
        self._thawing: asyncio.Task[None] | None = None

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

    async def _pause(self, _: m.Pause) -> m.Done:
        return await self._done(lambda domain: domain.suspend())

    async def _unpause(self, _: m.Unpause) -> m.Done:
        return await self._done(lambda domain: domain.resume())

    async def _soft_reboot(self, _: m.SoftReboot) -> m.Done:
        return await self._done(lambda domain: domain.reboot(0))

    async def _reset(self, _: m.Reset) -> m.Done:
        return await self._done(lambda domain: domain.reset(0))

    async def _done(self, call: Callable[[libvirt.virDomain], object]) -> m.Done:
        await self._domain(call)
        await self._look()
        return m.Done()

    async def _freeze(self, request: m.Freeze) -> m.Done:
        await self._domain.ask_guest(agent.freeze)
        self._forget_to_thaw()
        if request.timeout_seconds:
            self._thawing = tasks.keep(partial(self._thaw_after, request.timeout_seconds), "thaw")
        return m.Done()

    async def _thaw_after(self, seconds: int) -> None:
        await asyncio.sleep(seconds)
        logger.warning("nobody thawed the guest's file systems; it is done now")
        while True:
            try:
                await self._domain.ask_guest(lambda domain: domain.fsThaw())
                return
            except Failure as error:
                logger.warning("the guest's file systems cannot be thawed yet: %s", error)
                await asyncio.sleep(_THAW_AGAIN)

    async def _unfreeze(self, _: m.Unfreeze) -> m.Done:
        self._forget_to_thaw()
        await self._domain.ask_guest(lambda domain: domain.fsThaw())
        return m.Done()

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
            return picture.png(bytes(received))

        return m.Picture(png=await self._domain.run(take))

    async def _guest_info(self, _: m.GetGuestInfo) -> m.GuestInfo:
        return await self._domain.ask_guest(agent.info)

    async def _stats(self, _: m.GetStats) -> m.Stats:
        return m.Stats(values=await self._domain.stats())

    async def _guest_ping(self, request: m.GuestPing) -> m.Done:
        await self._domain.ask_guest(
            lambda domain: agent.command(domain, "guest-ping", seconds=request.timeout_seconds)
        )
        return m.Done()

    async def _guest_exec(self, request: m.GuestExec) -> m.Executed:
        return await self._domain.ask_guest(
            lambda domain: agent.execute(domain, request.command, request.timeout_seconds)
        )
