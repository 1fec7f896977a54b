"""virt-controller may be killed at any instant, be there twice, and see everything late: it never doubles anything."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vm, a_vmi

from bench.simulator import NAMESPACE, CountingApi
from virtfleet.api import names
from virtfleet.controller.assembly import VirtController
from virtfleet.controller.cids import LOWEST, Cids
from virtfleet.kube.api import WatchEvent
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONTROLLER_REVISIONS, PODS, VMI_REPLICA_SETS, VMIS, VMS, Obj, Resource
from virtfleet.local.apiserver.objects.operations import Operations

ORDER = ["Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed"]


class LateApi(CountingApi):
    """An API whose watches are late, each kind by another time that changes: caches disagree with each other."""

    def __init__(self, operations: Operations, chance: random.Random) -> None:
        super().__init__(operations)
        self._chance = chance

    @asynccontextmanager
    async def watch(self, res: Resource, *args: Any, **how: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with super().watch(res, *args, **how) as events:

            async def late() -> AsyncIterator[WatchEvent]:
                async for event in events:
                    if self._chance.random() < 0.3:
                        await asyncio.sleep(self._chance.random() * 0.05)
                    yield event

            yield late()


class Watcher:
    """Sees every change of VMIs and Pods as it happens."""

    def __init__(self, virt: Plane) -> None:
        self._virt = virt
        self.phases: dict[str, list[str]] = defaultdict(list)  # of VMIs by UID
        self.handed_over: dict[str, set[str]] = defaultdict(set)  # Pods that a VMI was handed over with
        self.alive: dict[str, set[str]] = defaultdict(set)  # Pods of a VMI that exist
        self.most_alive = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._follow(VMIS, self._vmi)), asyncio.create_task(self._follow(PODS, self._pod))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, resource: Resource, see: Any) -> None:
        async with self._virt.api.watch(resource, NAMESPACE) as events:
            async for event in events:
                if event.type != "BOOKMARK":
                    see(event.type, orjson.loads(event.object))

    def _vmi(self, kind: str, vmi: Obj) -> None:
        uid, status = vmi["metadata"]["uid"], vmi["status"]
        if self.phases[uid][-1:] != [status["phase"]]:
            self.phases[uid].append(status["phase"])
        self.handed_over[uid] |= set(status.get("activePods") or ())

    def _pod(self, kind: str, pod: Obj) -> None:
        alive = self.alive[pod["metadata"]["ownerReferences"][0]["uid"]]
        alive.discard(pod["metadata"]["uid"]) if kind == "DELETED" else alive.add(pod["metadata"]["uid"])
        self.most_alive = max(self.most_alive, len(alive))

    def check(self) -> None:
        assert self.most_alive == 1, "a VMI had two Pods at one time"
        for uid, phases in self.phases.items():
            assert phases == sorted(phases, key=ORDER.index), f"{uid} went back: {phases}"
            assert len(self.handed_over[uid]) <= 1, f"{uid} was handed over twice"


async def disturb(virt: Plane, chance: random.Random, vmis: list[str]) -> list[str]:
    """Delete some Pods and some VMIs; the answer is the VMIs that are meant to be left."""
    left = []
    for name in vmis:
        fate = chance.random()
        await asyncio.sleep(chance.random() * 0.03)
        try:
            if fate < 0.25:
                await virt.api.delete(VMIS, name, NAMESPACE)
                continue
            if fate < 0.5:
                mine = f"{names.DOMAIN}={name}"
                for pod in await virt.api.list(PODS, NAMESPACE, labels=mine):
                    await virt.api.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        except ApiError as error:
            assert error.code in (404, 409)
        left.append(name)
    return left


async def at_rest(virt: Plane, expected: list[str]) -> None:
    """Every VMI runs in a Pod of its own or has ended, and nothing else is left."""

    async def done() -> bool:
        vmis = {v["metadata"]["uid"]: v for v in await virt.api.list(VMIS, NAMESPACE)}
        phases = {v["metadata"]["name"]: v["status"]["phase"] for v in vmis.values()}
        assert phases.keys() == set(expected), phases.keys() ^ set(expected)
        assert set(phases.values()) <= {"Running", "Failed"}, phases
        pods = await virt.pods()
        owners = [vmis[p["metadata"]["ownerReferences"][0]["uid"]]["metadata"]["name"] for p in pods]
        assert sorted(owners) == sorted(name for name, phase in phases.items() if phase == "Running")
        return all(not p["metadata"].get("deletionTimestamp") for p in pods)

    await virt.until(done, deadline=30.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_two_controllers_that_see_everything_late_never_double_a_vm(virt: Plane, seed: int) -> None:
    chance = random.Random(seed)
    await virt.stop()
    watcher = Watcher(virt)
    both = [
        asyncio.create_task(VirtController(LateApi(virt.cluster.operations, random.Random(seed * 2 + i))).run())
        for i in range(2)
    ]
    try:
        async with watcher.watching():
            vmis = [f"vm{i}" for i in range(24)]
            for name in vmis:
                await virt.create(VMIS, a_vmi(name))
            left = await disturb(virt, chance, vmis)
            await at_rest(virt, left)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    watcher.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_kills_at_random_points_leave_nothing_half_done(virt: Plane, seed: int) -> None:
    chance = random.Random(seed)
    watcher = Watcher(virt)
    killing = True

    async def kill() -> None:
        while killing:
            for _ in range(chance.randrange(150)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.random() * 0.05)
            await virt.stop()
            virt.start()

    async with watcher.watching():
        killer = asyncio.create_task(kill())
        vmis = [f"vm{i}" for i in range(16)]
        for name in vmis:
            await virt.create(VMIS, a_vmi(name))
        left = await disturb(virt, chance, vmis)
        killing = False
        await killer
        await at_rest(virt, left)
    watcher.check()


@pytest.mark.parametrize("seed", range(2))
async def test_vms_and_sets_come_out_right_through_kills(virt: Plane, seed: int) -> None:
    chance = random.Random(seed)

    async def kills(times: int) -> None:
        for _ in range(times):
            for _ in range(chance.randrange(150)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.random() * 0.05)
            await virt.stop()
            virt.start()

    for i in range(4):
        await virt.create(VMS, a_vm("Always", f"vm{i}"))
    template = {"metadata": {"labels": {"app": "web"}}, "spec": a_vmi()["spec"]}
    spec = {"replicas": 5, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    await virt.create(VMI_REPLICA_SETS, {"metadata": {"name": "web"}, "spec": spec})
    await kills(10)
    for i in (0, 1):
        await virt.api.patch(VMS, f"vm{i}", {"spec": {"runStrategy": "Halted"}}, NAMESPACE)
    await virt.api.delete(VMS, "vm2", NAMESPACE)
    await virt.api.patch(VMI_REPLICA_SETS, "web", {"spec": {"replicas": 2}}, NAMESPACE)
    await kills(10)

    async def done() -> bool:
        vms = {v["metadata"]["name"]: v["status"].get("printableStatus") for v in await virt.api.list(VMS, NAMESPACE)}
        web = await virt.api.get(VMI_REPLICA_SETS, "web", NAMESPACE)
        return (
            vms == {"vm0": "Stopped", "vm1": "Stopped", "vm3": "Running"}
            and web["status"]["replicas"] == web["status"]["readyReplicas"] == 2
            and len(await virt.api.list(VMIS, NAMESPACE)) == len(await virt.pods()) == 3
        )

    await virt.until(done, deadline=30.0)
    revisions = await virt.api.list(CONTROLLER_REVISIONS, NAMESPACE, labels="")
    # What belonged to the deleted VM is the garbage collector's, which is not part of this cluster.
    owners = [r["metadata"]["ownerReferences"][0]["name"] for r in revisions]
    assert [name for name in owners if name != "vm2"] == ["vm3"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_no_two_vmis_get_the_same_vsock_address_through_kills(
    virt: Plane, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of addresses there are hardly more than VMIs, so that whoever forgets one that is in use gives it again."""
    chance = random.Random(seed)
    vmis = [f"vm{i}" for i in range(16)]
    monkeypatch.setattr("virtfleet.controller.instance.Cids", partial(Cids, highest=LOWEST + len(vmis)))
    await virt.stop()
    virt.start()
    seen = Addresses()
    watching = asyncio.create_task(seen.follow(virt))
    try:
        for name in vmis:
            await virt.create(VMIS, a_vmi(name, domain=WITH_VSOCK))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                await virt.stop()
                virt.start()
        left = await disturb(virt, chance, vmis)
        again = [f"again{i}" for i in range(len(vmis) - len(left))]  # what was given back may be had again
        for name in again:
            await virt.create(VMIS, a_vmi(name, domain=WITH_VSOCK))
        await at_rest(virt, [*left, *again])
        for vmi in await virt.api.list(VMIS, NAMESPACE):
            cid = vmi["status"].get("VSOCKCID")
            assert vmi["status"]["phase"] == "Failed" or LOWEST <= cid <= LOWEST + len(vmis)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert not seen.wrong and len(seen.given) >= len(left)


WITH_VSOCK = {"resources": {"requests": {"memory": "64Mi"}}, "devices": {"autoattachVSOCK": True}}


class Addresses:
    """Sees which VMI has which address, at every change."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.wrong: list[str] = []

    async def follow(self, virt: Plane) -> None:
        held: dict[int, str] = {}
        async with virt.api.watch(VMIS, NAMESPACE) as events:
            async for event in events:
                if event.type == "BOOKMARK":
                    continue
                vmi = orjson.loads(event.object)
                uid, cid = vmi["metadata"]["uid"], vmi["status"].get("VSOCKCID")
                if event.type == "DELETED":
                    held.pop(cid, None)
                elif cid is not None:
                    if held.setdefault(cid, uid) != uid:
                        self.wrong.append(f"{uid} has the {cid} of {held[cid]}")
                    if self.given.setdefault(uid, cid) != cid:
                        self.wrong.append(f"{uid} has another one than before")
