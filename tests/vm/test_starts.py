"""A start that cannot succeed is said, and nothing is said to run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from virtfleet.protocol.client import Client, Refused
from virtfleet.protocol.messages import COMMAND_SOCKET, DomainState, Status, Update
from vm.guests import machine, running, standing_alone

CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk that launchers may use."""
    with TemporaryDirectory(prefix="virtfleet-") as directory:
        disk = Path(directory) / "disk.img"
        disk.touch()
        os.truncate(disk, 64 << 20)
        for path in (Path(directory), disk):
            os.chown(path, 107, 107)
        yield disk


async def watched(client: Client, seen: list[Update]) -> None:
    async for update in client.watch():
        seen += [update]


async def test_the_second_vm_on_a_disk_never_runs_and_says_whose_fault_it_is(disk: Path) -> None:
    async with running(machine([CLAIM]), data=disk) as first, standing_alone(machine([CLAIM]), data=disk) as second:
        assert (await first.state()).machine.startswith("pc-q35-"), "the version behind the alias"
        refusals, seen = [], list[Update]()
        with pytest.raises(Refused, match="another VM has this disk open: stop that VM") as refused:
            await second.start()
        refusals.append(str(refused.value))
        async with await Client.connect(second.sandbox.path(COMMAND_SOCKET)) as client:
            watching = asyncio.create_task(watched(client, seen))
            with pytest.raises(Refused) as refused:
                await second.sync(second.vmi)
            refusals.append(str(refused.value))
            watching.cancel()
        assert refusals[0] == refusals[1], "one event, not one for each attempt"
        assert [update.state for update in seen] == [DomainState()], "no state but that it is not there"
        assert (await first.state()).status is Status.RUNNING


async def test_a_machine_type_that_is_not_here_is_refused_and_not_replaced() -> None:
    vmi = machine()
    vmi["spec"]["domain"]["machine"] = {"type": "pc-q35-9.9"}
    async with standing_alone(vmi) as standalone:
        with pytest.raises(Refused, match=r"spec.domain.machine.type: .*'pc-q35-9.9'"):
            await standalone.start()
