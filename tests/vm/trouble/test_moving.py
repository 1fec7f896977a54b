"""Migrations around which everything dies: the guest is on one side, whole, and what is said of it is true.

Every choice comes from one seed, which is shown: VIRTFLEET_MOVES_SEED repeats a run, as far as two runs can be alike.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

from component.moving import image
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS
from vm.trouble import moving
from vm.trouble.fleet import Fleet, import_disk
from vm.trouble.moving import Guest, eventually

MANY = 200
SEED = int(os.environ.get("VIRTFLEET_MOVES_SEED", "") or random.randrange(1 << 16))
COMPONENTS = ("virt-controller", "virt-handler", "virt-api")

pytestmark = pytest.mark.local_home("it kills processes on this machine")


@pytest.fixture(scope="module")
def disk(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("disk")
    import_disk(fleet, place / "counts.tar", moving.IMAGE, image(place / "disk.img").read_bytes())
    yield


async def repaired(api: Client) -> None:
    """Components run again. One that was killed often is made anew: each time it would be started again later.

    A migration gives a handler a minute to come back, so that none of them may have to wait for longer than that.
    """

    async def ready() -> bool:
        pods = await api.list(PODS, "kubevirt", labels=f"kubevirt.io in ({','.join(COMPONENTS)})")
        waiting = False
        for pod in pods:
            going = "deletionTimestamp" in pod["metadata"]
            containers = pod["status"].get("containerStatuses") or [{}]
            often = any(container.get("restartCount", 0) > 1 for container in containers)
            if often and not going:
                await api.delete(PODS, pod["metadata"]["name"], "kubevirt")
            waiting = waiting or going or often or not all(container.get("ready") for container in containers)
        return bool(pods) and not waiting

    await eventually(ready, "components are ready")


async def disturb(fleet: Fleet, capsys: pytest.CaptureFixture[str], number: int, longest_gap: float) -> None:
    history = [f"seed {SEED}"]
    async with Client(config.load(fleet.cluster.kubeconfig)) as api:
        guest = Guest(fleet, api)
        await guest.start()
        for once in moving.rounds(guest, number, random.Random(SEED), longest_gap):
            try:
                await once.run()
            except Exception as error:
                error.add_note("\n".join([*history, str(once), f"Pods visited: {guest.visited}"]))
                raise
            history.append(str(once))
            with capsys.disabled():
                sys.stdout.write(f"\n{once}")
                sys.stdout.flush()
            await repaired(api)
            if "lost" in once.told:
                await guest.end()
                await guest.start()
        await guest.end()


@pytest.mark.timeout(1200)
async def test_whatever_dies_there_is_one_guest_and_it_counts_on(
    fleet: Fleet, disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    await disturb(fleet, capsys, len(moving.WHAT), 5)


@pytest.mark.on_demand("VIRTFLEET_MOVES", "two hundred migrations take an hour")
@pytest.mark.timeout(3 * 3600)
async def test_two_hundred_times(fleet: Fleet, disk: None, capsys: pytest.CaptureFixture[str]) -> None:
    await disturb(fleet, capsys, int(os.environ.get("VIRTFLEET_MOVES_ROUNDS", MANY)), 45)
