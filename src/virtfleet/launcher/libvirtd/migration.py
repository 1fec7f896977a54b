"""A migration, as the hypervisor's steps say: begun and watched on the source, confirmed on both sides.

The call lasts as long as the migration, so it has a thread and a connection of its own. How it went is never taken from
its answer: both sides look at the domain. While its process lives on the source, the guest is the source's, whatever
the target has. But from when the target may have all of it, it does not run here again before the target is sure never
to let it run: what it did here meanwhile would be undone there. So where the target's answer is lost, or the daemon
that waited for it, the guest stands still until `stay`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element, fromstring

import libvirt
import msgspec

from virtfleet.api import traits
from virtfleet.api.migration import MigrationOptions
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, attribute, child
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.migration import Ask, Finish, Look, Mode, Route, Run, Turn, pace
from virtfleet.launcher.failure import Failure, explained
from virtfleet.launcher.libvirtd.connection import Connection, ask_vmm
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_LOOK = 0.4  # seconds between looks at a migration
_SAY = 1.0  # seconds between reports of its progress
_LONGEST = 7 * 24 * 3600.0  # seconds; `pace` ends it long before, where anybody set a limit
_CLOSED = "client socket is closed"  # what libvirt says of its connection to the target's daemon
_LINGERS = 2.0  # seconds that it may take for what nothing is in the way of
_LOOKS, _BETWEEN_LOOKS = 500, 0.02  # and seconds; for the hypervisor to find out whether the guest has gone
_JOIN, _JOIN_AGAIN = 300.0, 1.0  # seconds to join the halves of a guest whose post-copy broke, and between attempts
_NO_HALF = "is not processing incoming migration"  # what libvirt says of a target that has ended its part
_PARTED = "the connection to the other node was lost before that had said whether it has all of the guest"
_ABORTED = "its migration has been aborted"  # KubeVirt's last words, which its clients look for
_LOST_ON_THE_WAY = (
    "the guest is lost: it ran on the target when post-copy broke, with a part of its memory still here, and the two"
    " did not come together again: %s"
)
# In the metadata of the domain's document: its owner has paused it, and it stays so where it goes.
_OURS: Final = "{http://kubevirt.io}kubevirt"
_PAUSED: Final = "{http://kubevirt.io}paused"


class Seen(NamedTuple):
    """What libvirt says of the domain and of the job that moves it."""

    active: bool
    state: int
    reason: int
    job: dict[str, Any]

    @property
    def elsewhere(self) -> bool:
        """The guest runs on the target already, with a part of its memory here."""
        there = (libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
        return self.state == libvirt.VIR_DOMAIN_PAUSED and self.reason in there

    @property
    def broken(self) -> bool:
        """Post-copy broke off: a part of the guest's memory is here, and it runs on the target, or waits there."""
        return self[1:3] == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)

    @property
    def on_its_way(self) -> bool:
        """The guest stands still for the last of it."""
        return self[1:3] == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)

    @property
    def failed(self) -> bool:
        """It is decided that the guest stays; libvirt has still to clear up."""
        return self.job.get("type") in (libvirt.VIR_DOMAIN_JOB_FAILED, libvirt.VIR_DOMAIN_JOB_CANCELLED)

    @property
    def settled(self) -> bool:
        return not self.active or not self.job.get("type")


class Departure:
    """One move of the domain away from here. `say` is called when there is something to say of it."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        hypervisor: Hypervisor,
        vmi: VMI,
        say: Callable[[], object] = lambda: None,
    ) -> None:
        self.look = Look()
        self.aborted = False
        self.asks = ""
        """Why the guest stands still until somebody says that it may run here again."""
        self.stands = False
        """Whether the owner had paused the guest before it began."""
        self._still = False  # it may not run while its memory goes
        self._connection = connection
        self._name = name
        self._steps = hypervisor.migration
        self._vmi = vmi
        self._say = say
        self._said = 0.0
        self._end = ""  # why it is to end
        self._gone_there = False  # nothing of the guest is on the target any more
        self._stirred = asyncio.Event()
        self._stays = asyncio.Event()  # the target will not let the guest run

    def stir(self) -> None:
        """The domain may be different."""
        self._stirred.set()

    async def run(self, there: Element, route: Route, options: MigrationOptions) -> None:
        """Move the domain to a target that has prepared the document `there`; Failure where it stays."""
        run, copied, options = await self._plan(there, route, options)
        moving = self._start(run)
        began = progressed = tried = stood = due = time.monotonic()
        broken: float | None = None
        least: int | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._stirred.wait()
            self._stirred.clear()
            seen = await self._see()
            if seen and not seen.active:
                if not await shown(self._connection, self._name, self._steps.finish(source=True)):
                    raise Failure("the VM has ended on the way")
                return
            now = time.monotonic()
            if seen and seen.broken and moving.done():
                broken = broken or now
                if self._gone_there or now - broken > _JOIN:
                    raise Failure(_LOST_ON_THE_WAY % moving.result())
                if now - tried > _JOIN_AGAIN:
                    logger.warning("post-copy broke and is taken up again: %s", moving.result())
                    tried, moving = now, self._start(run, again=True)
                continue
            if seen and seen.settled and moving.done() and await self._as_before(seen, moving.result()):
                raise self._failure(moving.result())
            stood = stood if seen and seen.on_its_way else now
            stuck = now - stood > _LINGERS and await self._ask_vmm(self._steps.stuck)
            due = due if self._end or (seen and seen.failed) or stuck else now
            look = _measured(self.look, seen.job) if seen and not seen.settled else self.look
            if seen and not seen.settled and (least is None or look.left < least):
                least, progressed = look.left, now
            self._show(msgspec.structs.replace(look, elapsed=now - began, stuck=now - progressed))
            if now - due > _LINGERS:
                # libvirt sleeps through the end of one disk's copy while it notes that of another, and nothing else
                # than an abort wakes it; the hypervisor is woken as its steps say.
                logger.warning("the migration neither goes on nor ends; it is pushed to its end")
                await self._abort_job(self._steps.release)
            elif self._end:
                await self._abort_job()
            elif turn := pace(self._vmi, options, self.look, copied=copied):
                await self._take(turn)

    def _start(self, run: Run, *, again: bool = False) -> asyncio.Task[str]:
        moving = tasks.start(self._move(run, again=again), "migration")
        moving.add_done_callback(lambda _: self.stir())
        return moving

    def _failure(self, trouble: str) -> Failure:
        self.aborted = bool(self._end)
        return Failure(f"the VM has not moved: {self._end or trouble}")

    async def abort(self, why: str = "") -> None:
        """End it, and leave the domain here; Failure where that would lose the guest."""
        if refusal := self._steps.abort(self.look.mode):
            raise Failure(f"the migration cannot be aborted: {refusal}")
        self._end = ": ".join(filter(None, (_ABORTED, why)))
        await self._abort_job()

    def stay(self) -> None:
        """The guest may run here again: the target will not let it run."""
        self.asks = ""
        self._stays.set()
        self.stir()

    async def prepared(self) -> None:
        """The target is ready, and memory goes next. Where the guest may not run meanwhile, it stands still from now.

        libvirt has begun, so it lets the guest run on by itself where it stays here.
        """
        if self._still:
            try:
                await self._connection.run(partial(self._change, Mode.PAUSED))
            except libvirt.libvirtError as error:
                raise Failure(f"the guest does not stand still: {error}") from None
            self._show(msgspec.structs.replace(self.look, mode=Mode.PAUSED))

    async def parted(self) -> None:
        """The connection to the target's libvirt is lost. Wait until this one may know, which lets the guest run."""
        while self.look.mode is not Mode.POST_COPY and not self._stays.is_set():
            seen = await self._see()
            if seen and (not seen.active or seen.state != libvirt.VIR_DOMAIN_PAUSED):
                return  # the target was never told that it has all of the guest, and cannot be told any more
            if seen:
                self._ask(_PARTED)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._stays.wait()
        for _ in range(_LOOKS):
            if not await self._ask_vmm(self._steps.decides):
                return
            await asyncio.sleep(_BETWEEN_LOOKS)

    def _ask(self, trouble: str) -> None:
        if not self.asks:
            logger.warning("the guest stands still, because all of it may be on the target: %s", trouble)
            self.asks = f"the VM has not moved: {self._end or trouble}"
            self._say()

    async def _abort_job(self, release: Callable[[Ask], object] = lambda _: None) -> None:
        """What fails, because libvirt has not begun yet or is through, is tried again at the next look."""

        def abort(connection: libvirt.virConnect) -> None:
            domain = connection.lookupByName(self._name)
            ask = partial(ask_vmm, domain)
            if not self._steps.decides(ask):
                release(ask)
                domain.abortJob()

        try:
            await self._connection.run(abort)
        except (libvirt.libvirtError, Failure) as error:
            logger.info("the migration is not ended yet: %s", error)

    async def _ask_vmm(self, question: Callable[[Ask], bool]) -> bool:
        """The answer of one of the steps; no where there is none."""
        with suppress(libvirt.libvirtError, Failure):
            return await self._connection.run(lambda c: question(partial(ask_vmm, c.lookupByName(self._name))))
        return False

    def _show(self, look: Look) -> None:
        news = look.mode is not self.look.mode
        self.look = look
        if news or time.monotonic() - self._said > _SAY:
            self._said = time.monotonic()
            self._say()

    async def _plan(self, there: Element, route: Route, options: MigrationOptions) -> tuple[Run, int, MigrationOptions]:
        """How it goes, how many bytes of disks go along, and what is asked for that can be done."""
        try:
            running = await self._connection.run(self._document)
            if self.stands or self._still:  # it writes nothing, so all of it fits; libvirt refuses both at once
                options = msgspec.structs.replace(options, allow_post_copy=False)
            if traits.ended_when_silent(self._vmi):  # here it would be, while it stands still or runs there already
                options = msgspec.structs.replace(options, allow_post_copy=False, allow_workload_disruption=False)
            if refused := [o.message for o in self._steps.obstacles(self._vmi, running, options)]:
                raise Failure(f"the VM cannot move: {'; '.join(refused)}")
            sizes = await self._connection.run(partial(self._sizes, running))
            run = self._steps.run(self._vmi, running, there, route, options, sizes)
        except (DomainError, libvirt.libvirtError) as error:
            raise Failure(explained(str(error))) from None
        if self._end:
            raise self._failure("")
        return run, sum(sizes.get(disk, 0) for disk in run.copied), options

    async def _as_before(self, seen: Seen, trouble: str) -> bool:
        """Whether the guest is here as it was before. One that libvirt has left standing still runs on first."""
        if seen.state != libvirt.VIR_DOMAIN_PAUSED or self.stands or seen.elsewhere:
            return True
        if not self._stays.is_set():
            self._ask(trouble)
            return False
        logger.warning("the guest stands still, and nothing moves it; it runs on here")
        with suppress(libvirt.libvirtError, Failure):  # libvirt has done it, or it is tried again
            await self._connection.run(lambda c: c.lookupByName(self._name).resume())
        return False

    def _document(self, connection: libvirt.virConnect) -> Element:
        domain = connection.lookupByName(self._name)
        state, reason = domain.state()
        self.stands = state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_USER
        document = fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE))
        mark(document, paused=self.stands)
        self._still = not self.stands and self._steps.stands_still(document, connection.getVersion())
        return document

    def _sizes(self, running: Element, connection: libvirt.virConnect) -> dict[str, int]:
        domain, disks = connection.lookupByName(self._name), running.iterfind("devices/disk[@device='disk']")
        return {target: domain.blockInfo(target)[0] for d in disks if (target := attribute(d, "target", "dev"))}

    async def _move(self, run: Run, *, again: bool) -> str:
        """What libvirt says against it. An error may come after the domain has left, so it decides nothing."""
        flags = sum(getattr(libvirt, f"VIR_MIGRATE_{flag}") for flag in run.flags)
        if again:
            flags |= libvirt.VIR_MIGRATE_POSTCOPY_RESUME

        def move(connection: libvirt.virConnect) -> None:
            domain = connection.lookupByName(self._name)
            if run.longest_pause and not again:
                domain.migrateSetMaxDowntime(run.longest_pause)
            paused = libvirt.VIR_MIGRATE_PAUSED if self.stands or self._still else 0
            domain.migrateToURI3(run.uri, run.parameters, flags | paused)

        try:
            await self._connection.apart(move, limit=_LONGEST)
        except (libvirt.libvirtError, Failure) as error:
            said = explained(str(error))
            code = error.get_error_code() if isinstance(error, libvirt.libvirtError) else None
            self._gone_there = again and (code == libvirt.VIR_ERR_NO_DOMAIN or _NO_HALF in said)
            return f"the connection to the other node was lost ({said})" if _CLOSED in said else said
        return "libvirt says that it has, but the domain is still here"

    def _change(self, mode: Mode, connection: libvirt.virConnect) -> None:
        domain = connection.lookupByName(self._name)
        if mode is Mode.POST_COPY:
            domain.migrateStartPostCopy(0)
        else:
            domain.suspend()

    async def _see(self) -> Seen | None:
        """How it is now; None while that cannot be known."""

        def see(connection: libvirt.virConnect) -> Seen:
            domain = connection.lookupByName(self._name)
            job = domain.jobStats() if domain.isActive() else {}  # waits for a daemon that takes a domain up again
            state, reason = domain.state()
            return Seen(bool(domain.isActive()), state, reason, job)

        try:
            return await self._connection.run(see)
        except (libvirt.libvirtError, Failure) as error:
            logger.info("the migration's state is not known: %s", error)
            return None

    async def _take(self, turn: Turn) -> None:
        """Do what the pace asks for; what fails is tried again at the next look."""
        logger.warning("the migration changes to %s: %s", turn.mode or "its end", turn.why)
        try:
            if turn.mode is None:
                await self.abort(turn.why)
            else:
                await self._connection.run(partial(self._change, turn.mode))
                self._show(msgspec.structs.replace(self.look, mode=turn.mode))
        except (libvirt.libvirtError, Failure) as error:
            logger.info("the migration goes on as before: %s", error)


def _measured(look: Look, job: dict[str, Any]) -> Look:
    """With what libvirt's job says; a moment before anything moves it says nothing."""
    if "data_remaining" not in job:
        return look
    return Look(
        mode=look.mode,
        total=job.get("data_total", 0),
        left=job["data_remaining"],
        rate=job.get("memory_bps", 0) + job.get("disk_bps", 0),
        dirty_rate=job.get("memory_dirty_rate", 0) * job.get("memory_page_size", 4096),
        downtime_ms=job.get("downtime", 0),
        throttle=job.get("auto_converge_throttle", 0),
    )


def mark(document: Element, *, paused: bool) -> None:
    """Say in a document whether the owner of the guest has paused it."""
    metadata = child(child(document, "metadata"), _OURS)
    for old in metadata.findall(_PAUSED):
        metadata.remove(old)
    if paused:
        add(metadata, _PAUSED)


def land(domain: libvirt.virDomain) -> None:
    """Let a guest run that has arrived, unless its owner had paused it. Asked again, it changes nothing."""
    stands = fromstring(domain.XMLDesc()).find(f"metadata/{_OURS}/{_PAUSED}") is not None
    if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED and not stands:
        domain.resume()


def carried(domain: libvirt.virDomain, waited: float) -> Look:
    """What a migration to here came to; `waited` are seconds that the guest then stood before it was let run."""
    job = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED)
    look = _measured(Look(), {"data_remaining": 0, **job})
    paused = look.downtime_ms + round(waited * 1000)
    return msgspec.structs.replace(look, elapsed=job.get("time_elapsed", 0) / 1000 + waited, downtime_ms=paused)


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
        logger.debug("the domain cannot be looked at: %s", error)
        return False
