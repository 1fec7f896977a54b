"""Launchers whose guest moves, with libvirt daemons and hypervisors that die on the way: one guest, on one side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from component.moving import Listener, Move, Place, counted, counting, image
from virtfleet.api.migration import MigrationOptions
from virtfleet.protocol import messages as m
from virtfleet.work.tasks import held

LONGEST_PAUSE = 1.0  # seconds; an emulated guest on a machine that has other things to do
ROUNDS = 12


class House:
    """Places for one guest; where it is now, and all that it has said so far."""

    def __init__(self, directory: Path) -> None:
        self.stack = AsyncExitStack()
        self.disk = image(directory / "disk.img")
        self.cache = directory / "emulators"
        self.before: list[str] = []
        self.vmi: dict[str, Any] = {}
        self.place: Place

    async def start(self) -> None:
        """A new guest."""
        self.vmi, self.before = counting(), []
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
        async with asyncio.timeout(40):
            while len(self.counted()) <= len(counts) + 5:
                await asyncio.sleep(0.05)
        counts = self.counted()
        assert counts == list(range(1, len(counts) + 1))

    def moved(self, target: Place) -> None:
        self.before.append(self.place.said)
        self.place = target


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    tmp_path.chmod(0o755)
    async with made.stack:
        yield made


async def test_a_guest_moves_with_its_disks_and_counts_on(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.start()
    for _ in range(2):
        target = await house.target()
        listeners = [Listener(place) for place in (house.place, target)]
        listening = [held(listener.run(), "listen") for listener in listeners]
        move = Move(house.place, target)
        await move.begin(MigrationOptions())
        assert await move.outcome() == "moved"
        source, code = house.place, await house.place.sandbox.process.wait()  # type: ignore[union-attr]
        assert code == 0, source.log.read_text()
        house.moved(target)
        await house.counts()
        pause = listeners[1].first - listeners[0].last
        with capsys.disabled():
            print(f"\nthe guest stood still for {1000 * pause:.0f} ms")
        assert pause < LONGEST_PAUSE
        for task in listening:
            task.cancel()
        await move.close()
        again = await target.client.call(m.Arrive(migration=move.uid))
        assert again.status is m.Status.RUNNING
        assert (await target.sync(target.vmi)).status is m.Status.RUNNING, "it is not started again"
