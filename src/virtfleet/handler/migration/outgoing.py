"""A guest that leaves this node: from the first word with the target's handler until one of the two nodes has it.

While its hypervisor's process lives here, the guest is this node's, whatever anybody says. It is the target's from the
moment at which that process is dead, which the kernel tells; the target is told so, and nothing else lets it run there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from virtfleet.handler.migration.links import Hello, Identity, Link, LinkError, Purpose, Word
from virtfleet.handler.migration.proxy import ChannelsOut
from virtfleet.handler.pods.launchers import Launcher, Unresponsive
from virtfleet.handler.pods.process import PodProcess
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import AbortDeparture, Depart
from virtfleet.protocol.wire import WireError
from virtfleet.work import tasks
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

REACH = 60.0  # seconds for the target's handler to be reached, and to send the document
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between calls to the target's handler
_BROKEN = (LinkError, WireError, OSError, TimeoutError, Refused, Unresponsive)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the target's handler listens, by the VMI's status."""

    host: str
    port: int
    plain: bool


@dataclass(eq=False)
class Outgoing:
    """One migration away from here.

    `guests` are the hypervisor's processes that were alive when it was begun; `address` tells where the target is now,
    and `changed` is called when something is new.
    """

    uid: str
    _launcher: Launcher
    _pod: Path
    _guests: list[PodProcess]
    _identity: Identity
    _address: Callable[[], Address | None]
    _changed: Callable[[], None]
    begun: bool = False
    """Whether the launcher has been told to begin, by this process."""
    ended: bool = False
    """Whether nothing of the guest is alive here."""
    keeps: str = ""
    """Why the guest stays."""
    complete: bool = False
    running: bool = False
    """What the target says."""
    aborting: bool = False
    reported: float = 0.0
    """How long it had taken when its progress was last told, in seconds."""
    _ordered: bool = False  # from then on the launcher may have begun, whether it has said so or not
    _link: Link | None = None
    _trouble: str = "its address is not known"

    def __post_init__(self) -> None:
        self._document: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks = [
            tasks.keep(self._converse, f"migration control: {self.uid}"),
            tasks.start(self._watch(), f"migration guest: {self.uid}"),
        ]

    def begin(self, vmi: bytes, options: bytes) -> None:
        """Have the launcher send the guest, unless that is under way."""
        if len(self._tasks) == 2:
            self._tasks.append(tasks.start(self._depart(vmi, options), f"migration: {self.uid}"))

    async def keep(self, why: str) -> None:
        """The guest stays here, so the target can let go of what it has."""
        if not self.keeps and not self.ended:
            self.keeps = why
            await self._tell()

    async def abort(self) -> str:
        """Ask for the end of it; the answer is why that cannot be."""
        self.aborting = True
        if not self._ordered:
            await self.keep("it was aborted before it began")
            return ""
        try:
            await self._launcher.call(AbortDeparture(migration=self.uid))
        except (Refused, Unresponsive) as error:
            return str(error)
        return ""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._document.done():
            self._document.cancel()

    # The guest.

    async def _watch(self) -> None:
        for guest in self._guests:
            await guest.ended()
        self.ended = True
        logger.info("migration %s: nothing of the guest is alive here any more", self.uid)
        await self._tell()
        self._changed()

    async def _depart(self, vmi: bytes, options: bytes) -> None:
        """Get the target's document, open the channels, and have the launcher begin; all else it does."""
        out: ChannelsOut | None = None
        try:
            document = await self._received()
            out = ChannelsOut(f"migration {self.uid}", self._pod, self._call)
            await out.open()
            order = Depart(migration=self.uid, vmi=vmi, document=document, options=options)
            if self.keeps:
                return
            self._ordered = True
            await self._send(order)
            self.begun = True
            self._changed()
            await out.run()
        except _BROKEN as error:
            logger.warning("migration %s: %s", self.uid, error)
            # Once it has begun, how it ends is the launcher's to say.
            if not self.begun:
                await self.keep(str(error) or type(error).__name__)
        finally:
            if out:
                out.close()
            self._changed()

    async def _send(self, order: Depart) -> None:
        """A launcher that does not answer may have begun all the same; asked again, it changes nothing."""
        while True:
            try:
                await self._launcher.call(order)
                return
            except Unresponsive as error:
                logger.warning("migration %s: %s", self.uid, error)
            await asyncio.sleep(_FIRST_PAUSE)

    async def _received(self) -> str:
        try:
            async with asyncio.timeout(REACH):
                return await asyncio.shield(self._document)
        except TimeoutError:
            raise LinkError(f"the target's handler was not reached within {REACH:.0f} s: {self._trouble}") from None

    # The target's handler.

    async def _call(self, purpose: Purpose) -> Link:
        address = self._address()
        if address is None:
            raise LinkError("the VMI does not say where the target's handler is")
        hello = Hello(migration=self.uid, purpose=purpose)
        return await self._identity.dial(address.host, address.port, hello, plain=address.plain)

    async def _converse(self) -> None:
        """Speak with the target's handler, and call again when the connection breaks."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                self._link = await self._call(Purpose.CONTROL)
                await self._tell()
                while True:
                    self._hear(await self._link.word())
                    backoff.reset()
            except (LinkError, OSError) as error:
                self._trouble = str(error)
            finally:
                if self._link:
                    self._link.close()
                    self._link = None
            await asyncio.sleep(backoff.next())

    def _hear(self, word: Word) -> None:
        if word.document and not self._document.done():
            self._document.set_result(word.document)
        self.complete = self.complete or word.complete
        self.running = self.running or word.running
        self._changed()

    async def _tell(self) -> None:
        """Say what is known of the guest, now and on every new connection."""
        if self._link and (self.ended or self.keeps):
            # One that kept the guest never lets it go: it ran on here after the target had all of it.
            word = Word(source_keeps=self.keeps[:1024]) if self.keeps else Word(source_ended=True)
            with suppress(LinkError, OSError):
                await self._link.send(word)
