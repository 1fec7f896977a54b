"""A handler that ends at any moment, again and again, while VMs come and go: nothing is wrong or left in the end."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

from handler_kit import api_server, handler, scheduled
from handler_launcher import FakeLauncher
from kube_fixtures import eventually

from virtfleet.handler.vms.records import VmRecords
from virtfleet.kube.resource import VMIS
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.messages import Status

ROUNDS, VMS = 25, 6


class Life:
    """A VM with what stands around it: the kubelet that starts its launcher, the controller that lets its VMI go."""

    def __init__(self, api: InProcessApi, place: Path, name: str, ending: str) -> None:
        self._api, self._place, self._name, self._ending = api, place, name, ending
        self.launcher = FakeLauncher(place / f"pods/pod-{name}")
        self.last_phase = ""

    async def live(self, chance: random.Random) -> None:
        await scheduled(self._api, self._place, self._name)
        await asyncio.sleep(chance.uniform(0, 0.1))
        await self.launcher.start()
        await self._until("Running")
        await asyncio.sleep(chance.uniform(0, 0.2))
        if self._ending == "delete":
            await self._api.delete(VMIS, self._name, "default")
            await eventually(lambda: self.launcher.updates.latest.state.status.ended, 60)
        else:
            self.launcher.becomes(Status.SHUTOFF, self._ending)
        await asyncio.sleep(chance.uniform(0, 0.05))
        await self.launcher.end()
        await self._until("Succeeded", "Failed")
        await self._api.patch(VMIS, self._name, {"metadata": {"finalizers": []}}, "default")
        if self._ending != "delete":
            await self._api.delete(VMIS, self._name, "default")
        shutil.rmtree(self.launcher.pod)

    async def _until(self, *phases: str) -> None:
        async with asyncio.timeout(60):
            while self.last_phase not in phases:
                self.last_phase = (await self._api.get(VMIS, self._name, "default"))["status"]["phase"]
                await asyncio.sleep(0.01)


async def test_handlers_that_end_at_any_moment_lose_nothing(place: Path) -> None:
    chance = random.Random(7)
    endings = {"delete": "Succeeded", "Shutdown": "Succeeded", "Crashed": "Failed"}
    async with api_server(place) as api:
        lives = [Life(api, place, f"vm{n}", [*endings][n % len(endings)]) for n in range(VMS)]
        living = [asyncio.create_task(life.live(chance)) for life in lives]
        for _ in range(ROUNDS):
            async with handler(api, place):
                await asyncio.sleep(chance.uniform(0, 0.08))
        async with handler(api, place):
            await asyncio.gather(*living)
            await eventually(lambda: not VmRecords(place / "records").all())
    for number, life in enumerate(lives):
        assert life.last_phase == [*endings.values()][number % len(endings)]
        assert life.launcher.asked.count("Kill") == 0
        assert not life.launcher.pod.exists()
    assert not list((place / "networks").glob("*"))
