"""A launcher as the handler meets it: the real command socket, with a domain that only exists in the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from component.pod_member import PodMember
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.server import Server, Updates
from virtfleet.protocol import messages as m

SOCKET = f"{VOLUMES}/sockets/launcher-sock"


class FakeLauncher:
    """Starts the domain when it is told to, unless `refusal` says why not."""

    def __init__(self, pod: Path, *, vmi: str = "") -> None:
        self.pod = pod
        self.updates = Updates()
        self.synced: list[m.Sync] = []
        self.prepared: list[m.Prepare] = []
        self.departed: list[m.Depart] = []
        self.asked: list[str] = []
        self.refusal = ""
        self.obeys = True  # shuts down when it is asked to
        self.guest = m.GuestInfo()
        self.silent = asyncio.Event()  # set, the guest's agent does not answer
        self._server = Server(pod / SOCKET, self._handlers(), self.updates, vmi=vmi)
        self.process: PodMember | None = None
        self.own_network = False

    def _handlers(self) -> dict[type[m.Message], object]:
        return {
            m.Sync: self._sync,
            m.Prepare: self._prepare,
            m.Shutdown: self._shutdown,
            m.Kill: self._kill,
            m.GetGuestInfo: self._guest_info,
            m.GetDocument: self._document,
            m.Depart: self._depart,
            m.AbortDeparture: self._abort,
            m.Stay: self._stay,
            m.Arrive: self._arrive,
        }

    async def start(self) -> None:
        await self._server.start()  # type: ignore[arg-type]
        listener = self._server._server.sockets[0].fileno()  # type: ignore[union-attr]
        self.process = PodMember(self.pod.name, listener, own_network=self.own_network)

    def becomes(self, status: m.Status, reason: str = "", **more: object) -> None:
        state = msgspec.structs.replace(self.updates.latest.state, status=status, reason=reason, **more)
        self.updates.publish(m.Update(state=state))

    def leave_word(self) -> None:
        words = self.pod / "containers/compute/0123456789ab"
        words.parent.mkdir(parents=True, exist_ok=True)
        words.write_bytes(msgspec.json.encode(self.updates.latest.state))

    async def end(self) -> None:
        """As a launcher ends whose domain did."""
        self.leave_word()
        await self._close()

    async def _close(self) -> None:
        if self.process:
            self.process.end()
        await self._server.close()

    async def die(self) -> None:
        """As a launcher ends that is killed: its socket stays, and nobody listens."""
        path, aside = self.pod / SOCKET, self.pod / "aside"
        os.rename(path, aside)
        await self._close()
        os.rename(aside, path)

    async def _sync(self, request: m.Sync) -> m.DomainState:
        self.asked.append("Sync")
        if self.refusal:
            raise Failure(self.refusal)
        self.synced.append(request)
        if not self.updates.latest.state.status:
            self.becomes(m.Status.RUNNING, name="default_vm", uuid="u", disks={"root": "vda"})
        return self.updates.latest.state

    async def _prepare(self, request: m.Prepare) -> m.DomainState:
        self.asked.append("Prepare")
        if self.refusal:
            raise Failure(self.refusal)
        self.prepared.append(request)
        return self.updates.latest.state

    async def _document(self, request: m.GetDocument) -> m.Document:
        return m.Document(xml="<domain/>")

    async def _depart(self, request: m.Depart) -> m.Done:
        self.asked.append("Depart")
        if self.refusal:
            raise Failure(self.refusal)
        self.departed.append(request)
        self.moves(request.migration, running=True, mode="PreCopy")
        return m.Done()

    async def _abort(self, request: m.AbortDeparture) -> m.Done:
        self.asked.append("AbortDeparture")
        if self.refusal:
            raise Failure(self.refusal)
        self.moves(request.migration, failure="it was aborted", aborted=True)
        return m.Done()

    async def _stay(self, request: m.Stay) -> m.Done:
        self.asked.append("Stay")
        await self.before_it_stays()
        self.moves(request.migration, failure="the connection was lost")
        return m.Done()

    async def before_it_stays(self) -> None:
        """Looked at by tests."""

    async def _arrive(self, request: m.Arrive) -> m.DomainState:
        self.asked.append("Arrive")
        self.becomes(m.Status.RUNNING)
        return self.updates.latest.state

    def moves(self, uid: str, **report: object) -> None:
        """What it says of a migration from now on."""
        self.becomes(self.updates.latest.state.status, migration=m.MigrationReport(uid=uid, **report))  # type: ignore[arg-type]

    async def _shutdown(self, request: m.Shutdown) -> m.Done:
        self.asked.append("Shutdown")
        self.becomes(self.updates.latest.state.status, stopping=True)
        if self.obeys:
            self.becomes(m.Status.SHUTOFF, "Shutdown")
        return m.Done()

    async def _kill(self, request: m.Kill) -> m.Done:
        self.asked.append("Kill")
        self.becomes(m.Status.SHUTOFF, "Destroyed", killed=True)
        return m.Done()

    async def _guest_info(self, request: m.GetGuestInfo) -> m.GuestInfo:
        self.asked.append("GetGuestInfo")
        if self.silent.is_set():
            await asyncio.Future()
        return self.guest


@asynccontextmanager
async def launcher(pod: Path, *, vmi: str = "", own_network: bool = False) -> AsyncIterator[FakeLauncher]:
    found = FakeLauncher(pod, vmi=vmi)
    found.own_network = own_network
    await found.start()
    try:
        yield found
    finally:
        await found.end()
