"""A migration, as the hypervisor's steps say: begun and watched on the source, confirmed on both sides.

The call lasts as long as the migration, so it has a thread and a connection of its own. How it went is never taken from
its answer: both sides look at the domain, and a guest counts as moved only where libvirt says that it has been.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from xml.etree.ElementTree import Element, fromstring

import libvirt

from virtfleet.api.migration import MigrationOptions
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.migration import Finish, Look, Mode, Route, Run, Turn, pace
from virtfleet.launcher.failure import Failure, explained
from virtfleet.launcher.libvirtd.connection import Connection
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_LOOK = 0.4  # seconds between looks at a migration
_LONGEST = 7 * 24 * 3600.0  # seconds; `pace` ends it long before, where anybody set a limit
_ACTIVE_JOB = libvirt.VIR_DOMAIN_JOB_UNBOUNDED


class Departure:
    """One move of the domain away from here."""

    def __init__(self, connection: Connection, name: str, hypervisor: Hypervisor, vmi: VMI) -> None:
        self.look = Look()
        self._connection = connection
        self._name = name
        self._steps = hypervisor.migration
        self._vmi = vmi
        self._aborted = ""

    async def run(self, there: Element, route: Route, options: MigrationOptions) -> None:
        """Move the domain to a target that has prepared the document `there`; Failure where it stays."""
        run, copied = await self._plan(there, route, options)
        moving = tasks.start(self._move(run), "migration")
        began = progressed = time.monotonic()
        least: int | None = None
        while not (await asyncio.wait([moving], timeout=_LOOK))[0]:
            left = await self._left()
            now = time.monotonic()
            if left is not None and (least is None or left < least):
                least, progressed = left, now
            self.look = Look(mode=self.look.mode, elapsed=now - began, stuck=now - progressed)
            turn = pace(self._vmi, options, self.look, copied=copied)
            if turn and not self._aborted:
                await self._take(turn)
        trouble = moving.result()
        if not await shown(self._connection, self._name, self._steps.finish(source=True)):
            await self._stay()
            raise Failure(f"the VM has not moved: {self._aborted or trouble}")

    async def _plan(self, there: Element, route: Route, options: MigrationOptions) -> tuple[Run, int]:
        """How it goes, and how many bytes of disks go along."""
        try:
            running = await self._connection.run(self._document)
            if refused := [o.message for o in self._steps.obstacles(self._vmi, running, options)]:
                raise Failure(f"the VM cannot move: {'; '.join(refused)}")
            run = self._steps.run(self._vmi, running, there, route, options)
            return run, await self._connection.run(partial(self._bytes, run.copied))
        except (DomainError, libvirt.libvirtError) as error:
            raise Failure(explained(str(error))) from None

    async def _stay(self) -> None:
        """Let a guest that stood still for the migration's sake run on here."""
        if self.look.mode is Mode.PAUSED:
            with suppress(libvirt.libvirtError):  # libvirt has done it, or it has ended
                await self._connection.run(lambda c: c.lookupByName(self._name).resume())

    async def finish(self) -> None:
        """Forget the domain that has left, and none of what it kept on volumes."""
        flags = sum(getattr(libvirt, f"VIR_DOMAIN_UNDEFINE_{f}") for f in self._steps.finish(source=True).undefine)
        if await shown(self._connection, self._name, self._steps.finish(source=True)):
            await self._connection.run(lambda c: c.lookupByName(self._name).undefineFlags(flags))

    async def abort(self, why: str = "it was aborted") -> None:
        """End it, and leave the domain here; Failure where that would lose the guest, or nothing moves."""
        if refusal := self._steps.abort(self.look.mode):
            raise Failure(f"the migration cannot be aborted: {refusal}")
        try:
            await self._connection.run(lambda c: c.lookupByName(self._name).abortJob())
        except libvirt.libvirtError as error:
            raise Failure(f"the migration cannot be aborted: {explained(error.get_error_message())}") from error
        self._aborted = why

    def _document(self, connection: libvirt.virConnect) -> Element:
        domain = connection.lookupByName(self._name)
        return fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE))

    def _bytes(self, disks: tuple[str, ...], connection: libvirt.virConnect) -> int:
        domain = connection.lookupByName(self._name)
        return sum(domain.blockInfo(disk)[0] for disk in disks)

    async def _move(self, run: Run) -> str:
        """What libvirt says against it. An error may come after the domain has left, so it decides nothing."""

        def move(connection: libvirt.virConnect) -> None:
            domain = connection.lookupByName(self._name)
            flags = sum(getattr(libvirt, f"VIR_MIGRATE_{flag}") for flag in run.flags)
            if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
                flags |= libvirt.VIR_MIGRATE_PAUSED
            if run.longest_pause:
                domain.migrateSetMaxDowntime(run.longest_pause)
            domain.migrateToURI3(run.uri, run.parameters, flags)

        try:
            await self._connection.apart(move, limit=_LONGEST)
        except (libvirt.libvirtError, Failure) as error:
            return explained(str(error))
        return "libvirt says that it has, but the domain is still here"

    def _change(self, mode: Mode, connection: libvirt.virConnect) -> None:
        domain = connection.lookupByName(self._name)
        if mode is Mode.POST_COPY:
            domain.migrateStartPostCopy(0)
        else:
            domain.suspend()

    async def _left(self) -> int | None:
        """Bytes that are left, while there is something to move."""
        try:
            stats = await self._connection.run(lambda c: c.lookupByName(self._name).jobStats())
        except (libvirt.libvirtError, Failure) as error:
            logger.info("the migration's state is not known: %s", error)
            return None
        return int(stats["data_remaining"]) if stats.get("type") == _ACTIVE_JOB and "data_remaining" in stats else None

    async def _take(self, turn: Turn) -> None:
        """Do what the pace asks for; what fails is tried again at the next look."""
        logger.warning("the migration changes to %s: %s", turn.mode or "its end", turn.why)
        try:
            if turn.mode is None:
                await self.abort(turn.why)
            else:
                await self._connection.run(partial(self._change, turn.mode))
                self.look = Look(mode=turn.mode, elapsed=self.look.elapsed, stuck=self.look.stuck)
        except (libvirt.libvirtError, Failure) as error:
            logger.warning("the migration goes on as before: %s", error)


async def arrived(connection: Connection, name: str, hypervisor: Hypervisor) -> bool:
    """Whether the domain is here, and the source has let go of it."""
    return await shown(connection, name, hypervisor.migration.finish(source=False))


async def shown(connection: Connection, name: str, finish: Finish) -> bool:
    """Whether the domain is in one of the states that show that a side is done."""

    def look(connection: libvirt.virConnect) -> bool:
        state, reason = connection.lookupByName(name).state()
        return [state, reason] in [
            [getattr(libvirt, f"VIR_DOMAIN_{kind.partition('_')[0]}"), getattr(libvirt, f"VIR_DOMAIN_{kind}")]
            for kind in finish.states
        ]

    try:
        return await connection.run(look)
    except libvirt.libvirtError as error:
        logger.info("the domain cannot be looked at: %s", error)
        return False
