"""Migrations of the domain as its launcher sees them: one at a time away from here, or the one that it comes by."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from xml.etree.ElementTree import Element, ParseError, fromstring

import libvirt
import msgspec

from virtfleet.api import names
from virtfleet.api.migration import MigrationOptions
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.xml import text
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.migration import Look
from virtfleet.launcher.channels import ROUTE
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.guestnet.network import announce
from virtfleet.launcher.libvirtd.connection import Connection, Domain
from virtfleet.launcher.libvirtd.migration import Departure, carried, land, shown
from virtfleet.protocol import messages as m
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_LONGEST_WORDS = 1000  # of a failure
_GIVE_UP = 3.0  # seconds for libvirt to end a guest that never ran here


class Departures:
    """Moves away from here. `say` is called when there is something to say of one."""

    def __init__(self, connection: Connection, name: str, hypervisor: Hypervisor, say: Callable[[], object]) -> None:
        self._connection = connection
        self._name = name
        self._hypervisor = hypervisor
        self._say = say
        self._uid = ""
        self._departure: Departure | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure = ""

    @property
    def going_on(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, request: m.Depart) -> m.Done:
        """Begin to move the domain; asked again for the same migration, it changes nothing."""
        if request.migration == self._uid:
            return m.Done()
        if self.going_on:
            raise Failure(f"the VM is already on its way to another node, by migration {self._uid}")
        try:
            vmi = msgspec.json.decode(request.vmi, type=VMI)
            options = msgspec.json.decode(request.options or b"{}", type=MigrationOptions)
            there = fromstring(request.document)
        except (msgspec.MsgspecError, ParseError) as error:
            raise Failure(f"the migration cannot be read: {error}") from None
        self._uid, self._failure = request.migration, ""
        self._departure = Departure(self._connection, self._name, self._hypervisor, vmi, self._say)
        to_fail = names.FAIL_MIGRATIONS in vmi.metadata.annotations
        self._task = tasks.start(self._run(self._departure, there, options, to_fail), f"departure: {self._uid}")
        return m.Done()

    async def _run(self, departure: Departure, there: Element, options: MigrationOptions, to_fail: bool) -> None:
        try:
            if to_fail:
                raise Failure("Failed migration to satisfy functional test condition")
            await departure.run(there, ROUTE, options)
        except Failure as error:
            logger.warning("migration %s: %s", self._uid, error)
            self._failure = str(error)[:_LONGEST_WORDS]
        finally:
            asyncio.get_running_loop().call_soon(self._say)  # when it is over

    async def abort(self, request: m.AbortDeparture) -> m.Done:
        """End the migration; one that is over stays as it is."""
        if request.migration != self._uid:
            raise Failure(f"there is no migration {request.migration} here")
        if self._departure and self.going_on:
            await self._departure.abort()
        return m.Done()

    async def stay(self, request: m.Stay) -> m.Done:
        """The migration has failed; where the guest stands still because of it, it runs on."""
        if self._departure and request.migration == self._uid:
            self._departure.stay()
        return m.Done()

    async def prepared(self) -> None:
        """The target is ready; the guest's memory goes when this has returned."""
        if self._departure and self.going_on:
            await self._departure.prepared()

    async def parted(self) -> None:
        """libvirt has lost its connection to the target; wait until it may know."""
        if self._departure and self.going_on:
            await self._departure.parted()

    async def give_up(self) -> None:
        """The domain is to end here; a migration would keep it from hearing so."""
        if self._departure and self.going_on:
            with suppress(Failure):
                await self._departure.abort("the VM is to end")

    def stir(self) -> None:
        """The domain may be different."""
        if self._departure:
            self._departure.stir()

    def seen(self, state: m.DomainState) -> m.DomainState:
        """The state as its owner is to see it: that the guest stands still for a while is not its owner's doing."""
        if not self.going_on or state.status is not m.Status.PAUSED or (self._departure and self._departure.stands):
            return state
        return msgspec.structs.replace(state, reason="Migration")

    def report(self, state: m.DomainState) -> m.MigrationReport | None:
        """How far the latest one is, by the domain's state."""
        if self._departure is None:
            return None
        look, ended = self._departure.look, state.status.ended
        return m.MigrationReport(
            uid=self._uid,
            running=self.going_on and not ended,
            left=ended and state.reason == "Migrated",
            failure="" if ended else self._failure,
            asks=self._departure.asks[:_LONGEST_WORDS] if self.going_on and not ended else "",
            aborted=self._departure.aborted,
            mode=look.mode,
            elapsed_seconds=round(look.elapsed, 1),
            total_bytes=look.total,
            left_bytes=look.left,
            rate=look.rate,
            dirty_rate=look.dirty_rate,
            downtime_ms=look.downtime_ms,
        )

    def close(self) -> None:
        if self._task:
            self._task.cancel()


class Arrival:
    """The move by which the domain comes here, if it does."""

    def __init__(self, connection: Connection, domain: Domain, hypervisor: Hypervisor) -> None:
        self.expected = ""
        """UID of the migration."""
        self._connection = connection
        self._domain = domain
        self._hypervisor = hypervisor
        self._document = ""
        self._landed = False
        self._complete_since = 0.0
        self._carried = Look()

    def expect(self, migration: str, document: Element) -> None:
        """Everything is ready for the guest; `document` is that of a start here."""
        self.expected, self._document = migration, text(document)

    async def get_document(self, _: m.GetDocument) -> m.Document:
        if not self._document:
            raise Failure("nothing has been prepared here")
        return m.Document(xml=self._document)

    async def report(self) -> m.MigrationReport | None:
        if not self.expected:
            return None
        return m.MigrationReport(
            uid=self.expected,
            complete=self._landed or await self._complete(),
            elapsed_seconds=self._carried.elapsed,
            total_bytes=self._carried.total,
            rate=self._carried.rate,
            downtime_ms=self._carried.downtime_ms,
        )

    async def _complete(self) -> bool:
        complete = await shown(self._connection, self._domain.name, self._hypervisor.migration.finish(source=False))
        if complete and not self._complete_since:
            self._complete_since = time.monotonic()
        return complete

    async def land(self, request: m.Arrive) -> None:
        """Let the guest run; Failure where not all of it is here. May be repeated."""
        if request.migration != self.expected or not self.expected:
            raise Failure(f"no VM is expected by migration {request.migration}")
        if not await self._complete():
            raise Failure("the VM has not come yet")
        await self._domain(land)
        announce()
        waited = time.monotonic() - self._complete_since
        if not self._landed:
            with suppress(Failure):  # figures are worth no trouble
                self._carried = await self._domain(lambda domain: carried(domain, waited))
        self._landed = True

    async def give_up(self) -> None:
        """End what has come of a guest that is not to run here."""

        def end(connection: libvirt.virConnect) -> None:
            for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                domain.destroy()

        if self.expected:
            with suppress(Failure, TimeoutError):  # all that runs in the Pod ends with the launcher
                async with asyncio.timeout(_GIVE_UP):  # libvirt may wait for a hypervisor that does not answer
                    await self._domain.run(end)
