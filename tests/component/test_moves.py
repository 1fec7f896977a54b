"""Launchers whose guest moves, with libvirt daemons and hypervisors that die on the way: one guest, on one side."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from component.moving import COUNTS, DAEMONS, REMEMBERS, Listener, Move, Place, counted, counting, image
from tests.waiting import eventually
from virtfleet.api.migration import MigrationOptions
from virtfleet.protocol import messages as m
from virtfleet.protocol.client import Refused
from virtfleet.work.tasks import held

pytestmark = pytest.mark.slow  # real guests

ROUNDS = int(os.environ.get("MOVES_ROUNDS", "") or 5)  # each kind of death once


class House:
    """Places for one guest; where it is now, and all that it has said so far."""

    def __init__(self, directory: Path) -> None:
        self.stack = AsyncExitStack()
        self.directory = directory
        self.cache = directory / "emulators"
        self.before: list[str] = []
        self.vmi: dict[str, Any] = {}
        self.place: Place

    async def start(self, sector: bytes = COUNTS, **devices: object) -> None:
        """A new guest."""
        self.disk = image(self.directory / "disk.img", sector)
        self.vmi, self.before = counting(**devices), []
        self.place = await self.another()
        await self.place.start()
        await self.counts()

    async def another(self) -> Place:
        return await self.stack.enter_async_context(Place(self.vmi, self.disk, self.cache))

    async def target(self) -> Place:
        place = await self.another()
        await place.open()
        return place

    def counted(self) -> list[int]:
        return counted(*self.before, self.place.said)

    async def counts(self) -> None:
        """The guest goes on, and has never gone back."""
        counts = self.counted()
        await asyncio.to_thread(eventually, lambda: len(self.counted()) > len(counts) + 5)
        counts = self.counted()
        assert counts == list(range(1, len(counts) + 1))

    def moved(self, target: Place) -> None:
        self.before.append(self.place.said)
        self.place = target


@pytest.fixture
async def house() -> AsyncIterator[House]:
    with TemporaryDirectory(prefix="vfm-") as directory:  # where the launcher's user may look
        os.chmod(directory, 0o755)
        made = House(Path(directory))
        async with made.stack:
            yield made


# Tells the hardware address of whoever first says on a network that it is there now.
ANNOUNCED = """
import socket
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x8035))
packets.bind(("k6t-eth0", 0x8035))
packets.settimeout(60)
print(packets.recv(64)[6:12].hex(":"))
"""


async def test_a_guest_moves_with_its_disks_and_counts_on(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.start(tpm={})
    for _ in range(2):
        target = await house.target()
        announced = held(target.sandbox.run(sys.executable, "-c", ANNOUNCED), "announcements")
        listeners = [Listener(place) for place in (house.place, target)]
        listening = [held(listener.run(), "listen") for listener in listeners]
        move = Move(house.place, target)
        await move.begin(MigrationOptions())
        assert await move.outcome() == "moved"
        source, code = house.place, await house.place.sandbox.process.wait()
        assert code == 0, source.log.read_text()
        house.moved(target)
        await house.counts()
        assert (await announced).strip() == target.vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"]
        pause = listeners[1].first - listeners[0].last
        with capsys.disabled():
            sys.stdout.write(f"\nthe guest stood still for {1000 * pause:.0f} ms\n")
        for task in listening:
            task.cancel()
        await move.close()
        again = await target.client.call(m.Arrive(migration=move.uid))
        assert again.status is m.Status.RUNNING
        assert (await target.sync(target.vmi)).status is m.Status.RUNNING, "it is not started again"


async def test_nothing_is_lost_of_what_a_guest_writes_meanwhile(house: House) -> None:
    """Over a link on which its memory goes in rounds. Its hypervisor, left alone, takes some of it for unchanged."""
    await house.start(REMEMBERS)
    target = await house.target()
    move = Move(house.place, target, slow=0.02)
    await move.begin(MigrationOptions())
    assert await move.outcome() == "moved"
    await move.close()
    house.moved(target)
    await house.counts()


@pytest.mark.parametrize("how", ["its daemon dies", "the connection breaks"])
async def test_a_guest_is_the_sources_where_the_targets_last_answer_is_lost(house: House, how: str) -> None:
    """The target has all of the guest, and the source cannot know."""
    await house.start()
    target = await house.target()
    move = Move(house.place, target, mute=True)
    await move.begin(MigrationOptions())
    await asyncio.to_thread(eventually, lambda: target.report(move.uid).complete)
    assert move.source_lives
    for place in (house.place, target):  # a probe that failed now would have the kubelet end one of them
        await place.client.call(m.GuestPing())
        assert (await place.client.call(m.GuestExec(command=["true"]))).exit_code == 0
    if how == "its daemon dies":
        house.place.kill(*DAEMONS)
    else:
        move.cut()
    assert await move.outcome() == "stayed"
    await move.close()
    assert target.said == "", "it never ran there"
    await house.counts()
    with pytest.raises(Refused):  # this guest has no agent
        await house.place.client.call(m.GuestPing())
    target = await house.target()
    move = Move(house.place, target)
    await move.begin(MigrationOptions())
    assert await move.outcome() == "moved"
    await move.close()
    house.moved(target)
    await house.counts()


@pytest.mark.parametrize("how", ["its daemon dies", "the connection breaks"])
async def test_a_source_does_not_run_on_before_the_target_is_sure_not_to(house: House, how: str) -> None:
    """The target has all of the guest. What it did on the source since then would be undone there."""
    await house.start()
    target = await house.target()
    move = Move(house.place, target, mute=True)
    await move.begin(MigrationOptions())
    await asyncio.to_thread(eventually, lambda: target.report(move.uid).complete)
    if how == "its daemon dies":
        house.place.kill(*DAEMONS)
    else:
        move.cut()
    await asyncio.to_thread(eventually, lambda: house.place.report(move.uid).asks)
    assert not house.place.report(move.uid).failure
    house.place.kill("qemu-system")
    assert await move.outcome() == "moved", "nothing is lost either"
    await move.close()
    house.moved(target)
    await house.counts()


POST_COPY = MigrationOptions(allow_post_copy=True, allow_workload_disruption=True, completion_timeout_per_gi_b=1)


async def begun(house: House, target: Place) -> Move:
    """A move over a slow link, as soon as the guest runs on the target with a part of its memory on the source."""
    move = Move(house.place, target, slow=0.05)
    await move.begin(POST_COPY)
    await asyncio.to_thread(eventually, lambda: target.said, 60)
    assert house.place.report(move.uid).mode == "PostCopy"
    return move


RUNNING_ON = """
from virtfleet.hypervisors.qemu import migration
from virtfleet.launcher.libvirtd import migration as moving

migration._TELLS_ALL = 0
moving._JOIN = 15.0
"""


@pytest.fixture
def running_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest runs while its memory goes, as one whose CPUs are not emulated does.

    Nobody tries for as long as five minutes to join halves that are known to be lost.
    """
    (house.directory / "sitecustomize.py").write_text(RUNNING_ON)
    monkeypatch.setenv("PYTHONPATH", str(house.directory))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("user_faults", "running_on")
async def test_a_post_copy_whose_target_dies_has_lost_the_guest_and_says_so(house: House) -> None:
    await house.start()
    target = await house.target()
    move = await begun(house, target)
    with pytest.raises(Refused, match="cannot be aborted: the guest already runs on the target"):
        await house.place.client.call(m.AbortDeparture(migration=move.uid))
    said = house.place.said
    target.kill("qemu-system")
    # A source that had sent its last page waits for the target's word, until nobody tries to join the halves any more.
    if await move.outcome() == "lost":  # it had heard that word before the target died, and ended
        await move.close()
        return
    assert "the guest is lost: it ran on the target when post-copy broke" in house.place.report(move.uid).failure
    state = await house.place.client.call(m.GetState())
    assert (state.status, state.reason) == (m.Status.PAUSED, "PostCopyFailed"), "it is not let run a second time"
    assert house.place.said == said
    await move.close()


VICTIMS = {
    "nothing": None,
    "source's libvirt": (0, DAEMONS),
    "target's libvirt": (1, DAEMONS),
    "source's QEMU": (0, ("qemu-system",)),
    "target's QEMU": (1, ("qemu-system",)),
}


@pytest.mark.timeout(420)
async def test_whatever_dies_on_the_way_there_is_one_guest_or_none(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each round kills something at some instant, and the next one moves what is left."""
    seed = int(os.environ.get("MOVES_SEED", "") or random.randrange(1 << 16))
    chance = random.Random(seed)
    instants = [chance.uniform(0, 1) for _ in range(ROUNDS)]
    shown = [f"seed {seed}"]
    await house.start()
    for number, instant in enumerate(instants):
        what, victim = list(VICTIMS.items())[number % len(VICTIMS)]
        target = await house.target()
        move = Move(house.place, target)
        await move.begin(MigrationOptions())
        await asyncio.sleep(instant)
        if victim:
            (house.place, target)[victim[0]].kill(*victim[1])
        outcome = await move.outcome()
        shown.append(f"{what} died after {instant:.2f} s: {outcome}")
        with capsys.disabled():
            sys.stdout.write(f"\n{shown[-1]}")
        running = [place for place in (house.place, target) if place.processes("qemu-system")]
        assert running == {"moved": [target], "stayed": [house.place], "lost": []}[outcome], shown
        assert (outcome == "moved") or victim, shown
        logs = [place.log.read_text()[-6000:] for place in (house.place, target)]
        assert (outcome == "lost") <= ("QEMU" in what), "\n".join([*shown, *logs])
        if victim and victim[0]:
            assert "the hypervisor has died" not in logs[0], "\n".join([*shown, *logs])
        if outcome == "stayed":
            assert target.said == "", shown
        await move.close()
        if outcome == "lost":
            await house.start()
        elif outcome == "moved":
            house.moved(target)
        await house.counts()
