"""What a launcher makes of a migration, by what libvirt shows of the domain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4
from xml.etree.ElementTree import Element

import libvirt
import msgspec
import pytest

from tests.waiting import eventually
from virtfleet.handler.node import profiles
from virtfleet.hypervisors import registry
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd import migration
from virtfleet.launcher.vm import moves
from virtfleet.launcher.vm.moves import Arrival, Departures
from virtfleet.protocol import messages as m

T = TypeVar("T")
RUNNING = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
PAUSED = libvirt.VIR_DOMAIN_PAUSED
LIMBO = [PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION]
MIGRATED = [libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED]
BUSY = {"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED, "data_remaining": 7, "data_total": 9, "memory_bps": 3}
DOCUMENT = "<domain type='qemu'><name>n</name><devices/></domain>"


class Libvirt:
    """A connection to a daemon whose one domain does what the test says."""

    def __init__(self) -> None:
        self.now, self.job = RUNNING, {"type": 0}
        self.calls: list[object] = []
        self.answers: dict[str, Any] = {}  # of the hypervisor
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self.words = "the connection broke"  # by which a migration ends

    async def run(self, call: Callable[[Any], T], **_: object) -> T:
        return call(self)

    async def apart(self, call: object, *, limit: float) -> None:
        self.job = BUSY
        self.begun.set()
        await self.over.wait()
        raise Failure(self.words)

    def lookupByName(self, _: str) -> Libvirt:
        return self

    def getVersion(self) -> int:
        return 9_000_000

    def isActive(self) -> bool:
        return self.now[0] != libvirt.VIR_DOMAIN_SHUTOFF

    def state(self) -> list[int]:
        return self.now

    def jobStats(self) -> dict[str, int]:
        return self.job

    def XMLDesc(self, _: int = 0) -> str:
        return DOCUMENT

    def resume(self) -> None:
        self.calls.append("resume")
        self.now = RUNNING

    def abortJob(self) -> None:
        self.calls.append("abort")


def ask_vmm(domain: Libvirt, command: str, arguments: dict[str, str]) -> dict[str, Any]:
    if not command.startswith("query"):
        domain.calls.append((command, arguments))
    return {"return": domain.answers.get(command, {})}


class Launcher:
    """A launcher's departures, and what it would tell of them."""

    def __init__(self, libvirt: Libvirt) -> None:
        self.libvirt = libvirt
        self.said = asyncio.Event()
        self.departures = Departures(self.libvirt, "n", registry.get("qemu-kvm"), self.said.set)  # type: ignore[arg-type]

    def depart(self, uid: str, vmi: bytes = b"{}") -> None:
        self.departures.begin(m.Depart(migration=uid, vmi=vmi, document=DOCUMENT, options=b"{}"))

    def breaks(self, state: list[int]) -> None:
        """The daemon dies and comes back, and this is how it finds the domain."""
        self.libvirt.now, self.libvirt.job = state, {"type": 0}
        self.libvirt.over.set()

    def report(self, state: m.DomainState | None = None) -> m.MigrationReport:
        report = self.departures.report(state or m.DomainState(status=m.Status.RUNNING))
        assert report is not None
        return report

    async def settled(self) -> m.MigrationReport:
        async with asyncio.timeout(10):
            while self.departures.going_on:
                self.said.clear()
                await self.said.wait()
        return self.report()


@pytest.fixture
async def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    for name, seconds in (("_LOOK", 0.01), ("_JOIN", 0.2), ("_JOIN_AGAIN", 0.02), ("_LINGERS", 0.05), ("_SAY", 0)):
        monkeypatch.setattr(migration, name, seconds)
    monkeypatch.setattr(migration, "ask_vmm", ask_vmm)
    return Launcher(Libvirt())


async def test_a_guest_that_a_dead_daemon_left_standing_still_runs_on_here(launcher: Launcher) -> None:
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.breaks(LIMBO)
    await launcher.said.wait()
    assert launcher.report().asks == "the VM has not moved: the connection broke"
    assert launcher.libvirt.calls == [], "all of it may be on the target"
    await launcher.departures.stay(m.Stay(migration="another"))
    assert launcher.report().asks
    await launcher.departures.stay(m.Stay(migration="a"))
    report = await launcher.settled()
    assert launcher.libvirt.calls == ["resume"]
    assert not report.asks
    assert (report.failure, report.left) == ("the VM has not moved: the connection broke", False)


async def test_nodes_that_cannot_do_post_copy_are_told_of_with_what_to_do(launcher: Launcher) -> None:
    launcher.libvirt.words = "unable to execute QEMU command 'migrate-set-capabilities': Postcopy is not supported"
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.breaks(RUNNING)
    report = await launcher.settled()
    assert "set vm.unprivileged_userfaultfd=1 on both nodes" in report.failure
    assert f"choose the seccomp profile {profiles.CHOICE} for launchers" in report.failure


async def test_a_vm_that_is_to_fail_at_moving_fails_and_can_move_when_it_is_no_longer(launcher: Launcher) -> None:
    mark = b'{"metadata":{"annotations":{"kubevirt.io/func-test-force-launcher-migration-failure":""}}}'
    launcher.depart("a", mark)
    report = await launcher.settled()
    assert report.failure == "Failed migration to satisfy functional test condition"
    assert not launcher.libvirt.begun.is_set()
    launcher.depart("b")
    await launcher.libvirt.begun.wait()
    launcher.departures.close()


async def test_libvirt_hears_of_a_lost_connection_when_that_does_no_harm(launcher: Launcher) -> None:
    await launcher.departures.parted()  # nothing moves
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    await launcher.departures.parted()  # the guest runs here: the target cannot have been told that it has all of it
    assert not launcher.report().asks
    launcher.libvirt.now = LIMBO
    parted = asyncio.ensure_future(launcher.departures.parted())
    await asyncio.to_thread(eventually, lambda: launcher.report().asks)
    assert not parted.done()
    await launcher.departures.stay(m.Stay(migration="a"))
    await asyncio.wait_for(parted, 5)
    launcher.breaks(RUNNING)
    await launcher.settled()


async def test_a_migration_is_not_ended_while_the_guest_has_no_disks(launcher: Launcher) -> None:
    """QEMU would let it run so, and die."""
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.libvirt.now, launcher.libvirt.answers = LIMBO, {"query-migrate": {"status": "device"}}
    await launcher.departures.abort(m.AbortDeparture(migration="a"))
    await launcher.departures.stay(m.Stay(migration="a"))
    parted = asyncio.ensure_future(launcher.departures.parted())
    for _ in range(30):  # looks
        launcher.said.clear()
        await launcher.said.wait()
    assert launcher.libvirt.calls == [] and not parted.done()
    launcher.libvirt.answers = {"query-migrate": {"status": "completed"}}
    await asyncio.wait_for(parted, 5)
    await asyncio.to_thread(eventually, lambda: "abort" in launcher.libvirt.calls)
    launcher.breaks(RUNNING)
    assert (await launcher.settled()).aborted


@pytest.mark.parametrize("reason", [libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED])
async def test_a_guest_of_which_a_part_is_elsewhere_is_not_let_run(launcher: Launcher, reason: int) -> None:
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.breaks([PAUSED, reason])
    report = await launcher.settled()
    assert launcher.libvirt.calls == []
    assert report.failure


class Asleep(Libvirt):
    """It has noticed that the migration failed, and sleeps until somebody wants it to end."""

    def abortJob(self) -> None:
        super().abortJob()
        self.now, self.job = RUNNING, {"type": 0}
        self.over.set()


PUSHED = [("migrate-continue", {"state": "cancelling"}), "abort"]
WAITS = {
    "query-migrate": {"status": "pre-switchover"},
    "query-jobs": [{"status": "concluded"}, {"status": "concluded"}],
}


@pytest.fixture
async def asleep(launcher: Launcher) -> Launcher:
    return Launcher(Asleep())


@pytest.mark.parametrize("job", [libvirt.VIR_DOMAIN_JOB_FAILED, libvirt.VIR_DOMAIN_JOB_CANCELLED])
async def test_a_migration_that_has_failed_and_does_not_end_is_pushed(asleep: Launcher, job: int) -> None:
    """QEMU may wait for leave to send the last of the guest, and libvirt for the news that a disk's copy has ended."""
    asleep.depart("a")
    await asleep.libvirt.begun.wait()
    asleep.libvirt.job = {"type": job}
    report = await asleep.settled()
    assert asleep.libvirt.calls == PUSHED
    assert report.failure == "the VM has not moved: the connection broke" and not report.aborted


async def test_a_guest_does_not_stand_still_for_disks_that_are_copied(asleep: Launcher) -> None:
    asleep.depart("a")
    await asleep.libvirt.begun.wait()
    asleep.libvirt.now, asleep.libvirt.answers = LIMBO, WAITS
    assert (await asleep.settled()).failure
    assert asleep.libvirt.calls == PUSHED


@pytest.mark.parametrize(
    "answers", [WAITS | {"query-jobs": [{"status": "running"}]}, WAITS | {"query-migrate": {"status": "device"}}]
)
async def test_a_guest_that_stands_still_for_a_reason_is_left_so(asleep: Launcher, answers: dict[str, Any]) -> None:
    asleep.depart("a")
    await asleep.libvirt.begun.wait()
    asleep.libvirt.now, asleep.libvirt.answers = LIMBO, answers
    for _ in range(30):  # looks, of which the fifteenth would push
        asleep.said.clear()
        await asleep.said.wait()
    assert asleep.libvirt.calls == []
    asleep.libvirt.now = MIGRATED
    await asleep.settled()


class Joined(Libvirt):
    """Post-copy breaks once, and comes to its end when it is taken up again."""

    flags: tuple[int, ...] = ()

    async def apart(self, call: Callable[[Any], T], *, limit: float) -> T:  # type: ignore[override]
        return call(self)

    def migrateToURI3(self, _uri: str, _parameters: object, flags: int) -> None:
        self.flags = (*self.flags, flags)
        if len(self.flags) > 1:
            self.now = MIGRATED
            return
        self.now = [PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED]
        raise libvirt.libvirtError("broken")


async def test_a_post_copy_that_breaks_is_taken_up_again(monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> None:
    joined = Joined()
    monkeypatch.setattr(launcher.departures, "_connection", joined)
    launcher.libvirt = joined
    launcher.depart("a")
    await launcher.settled()
    resumed = libvirt.VIR_MIGRATE_POSTCOPY_RESUME
    assert [bool(flags & resumed) for flags in joined.flags] == [False, True]
    assert joined.calls == [] and not launcher.departures._failure


async def test_a_guest_that_its_owner_paused_is_left_so(launcher: Launcher) -> None:
    launcher.libvirt.now = [PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    paused = m.DomainState(status=m.Status.PAUSED, reason="User")
    assert launcher.departures.seen(paused) == paused
    launcher.breaks(LIMBO)
    await launcher.settled()
    assert launcher.libvirt.calls == []


async def test_nothing_is_settled_while_libvirt_is_at_it_though_its_answer_was_lost(launcher: Launcher) -> None:
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.libvirt.now = LIMBO
    launcher.libvirt.over.set()
    await launcher.said.wait()  # of progress
    assert launcher.departures.going_on and launcher.libvirt.calls == []
    stands = m.DomainState(status=m.Status.PAUSED, reason="User")
    assert launcher.departures.seen(stands).reason == "Migration", "its owner has not paused it"
    assert launcher.report().running and launcher.report().total_bytes == 9
    launcher.libvirt.now = MIGRATED
    gone = m.DomainState(status=m.Status.SHUTOFF, reason="Migrated")
    await launcher.settled()
    assert launcher.report(gone) == msgspec.structs.replace(launcher.report(gone), left=True, failure="", running=False)


async def test_a_domain_that_ends_on_the_way_has_neither_left_nor_stayed(launcher: Launcher) -> None:
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.breaks([libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED])
    await launcher.settled()
    report = launcher.report(m.DomainState(status=m.Status.SHUTOFF, reason="Crashed"))
    assert (report.left, report.failure, report.running) == (False, "", False)


async def test_one_migration_at_a_time_and_each_only_once(launcher: Launcher) -> None:
    launcher.depart("a")
    await launcher.libvirt.begun.wait()
    launcher.depart("a")
    with pytest.raises(Failure, match="already on its way to another node, by migration a"):
        launcher.depart("b")
    with pytest.raises(Failure, match="there is no migration b here"):
        await launcher.departures.abort(m.AbortDeparture(migration="b"))
    await launcher.departures.abort(m.AbortDeparture(migration="a"))
    assert "abort" in launcher.libvirt.calls
    launcher.breaks(RUNNING)
    report = await launcher.settled()
    assert report.aborted and report.failure == "the VM has not moved: its migration has been aborted"
    await launcher.departures.abort(m.AbortDeparture(migration="a"))
    launcher.depart("a")
    assert not launcher.departures.going_on, "it is over"
    another = str(uuid4())
    launcher.depart(another)
    assert launcher.departures.going_on and launcher.report().uid == another
    await launcher.departures.abort(m.AbortDeparture(migration=another))
    assert (await launcher.settled()).aborted, "before libvirt was asked to move anything"


async def test_an_order_that_cannot_be_read_is_refused(launcher: Launcher) -> None:
    with pytest.raises(Failure, match="the migration cannot be read"):
        launcher.departures.begin(m.Depart(migration="a", vmi=b"{}", document="no document"))
    assert launcher.departures.report(m.DomainState()) is None


async def test_a_target_does_not_wait_for_a_libvirt_that_hangs_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs:
        asked = 0

        async def run(self, _: object) -> None:
            self.asked += 1
            await asyncio.Event().wait()

    monkeypatch.setattr(moves, "_GIVE_UP", 0.01)
    libvirt = Hangs()
    arrival = Arrival(Libvirt(), libvirt, registry.get("qemu-kvm"))  # type: ignore[arg-type]
    await arrival.give_up()
    assert not libvirt.asked, "nobody was expected"
    arrival.expect("a", Element("domain"))
    await asyncio.wait_for(arrival.give_up(), 5)
    assert libvirt.asked
