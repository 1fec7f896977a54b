"""CPUs and memory that come to a guest while it runs, seen by the guest itself."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from virtfleet.protocol.messages import DomainState, GuestExec
from vm.guests import VM, eventually, machine, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
GI = 1024**3


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def vm() -> AsyncIterator[VM]:
    vmi = machine()
    vmi["spec"]["domain"] |= {
        "cpu": {"sockets": 1, "cores": 1, "maxSockets": 4},
        "memory": {"guest": "1Gi", "maxGuest": "2Gi"},
    }
    async with running(vmi) as booting:
        await booting.says(r"virtfleet-guest ready.*\n")
        yield booting


async def grown(vm: VM, **domain: Any) -> DomainState:
    vmi = copy.deepcopy(vm.standalone.vmi)
    for part, change in domain.items():
        vmi["spec"]["domain"][part] |= change
    return await vm.standalone.sync(vmi)


async def sees(vm: VM, command: str) -> int:
    """A number that a command says in the guest."""

    async def agent() -> bool:
        return (await vm.state()).agent

    await eventually(agent)
    done = await vm.client.call(GuestExec(command=["/bin/sh", "-c", command]))
    return int(done.stdout)


async def test_a_guest_starts_with_what_it_asks_for_and_nothing_more(vm: VM) -> None:
    state = await vm.state()
    assert (state.topology, state.boot_memory, state.memory, state.requested_memory) == ((1, 1, 1), GI, GI, GI)
    assert state.abi is not None
    assert not [device for device in state.abi.devices if "memory/" in device.name]
    assert await sees(vm, "grep -c ^processor /proc/cpuinfo") == 1


async def test_sockets_are_added(vm: VM) -> None:
    assert (await grown(vm, cpu={"sockets": 3})).topology == (3, 1, 1)

    async def there() -> bool:
        return await sees(vm, "grep -c ^processor /proc/cpuinfo") == 3

    await eventually(there)
    assert (await grown(vm, cpu={"sockets": 3})).topology == (3, 1, 1), "again is nothing new"
    assert (await grown(vm, cpu={"sockets": 9})).topology == (4, 1, 1), "no more than it was started with room for"
    assert (await grown(vm, cpu={"sockets": 1})).topology == (4, 1, 1), "nothing is taken from a guest"


async def test_memory_is_added_and_told_as_far_as_the_guest_has_taken_it(vm: VM) -> None:
    before = await sees(vm, "awk '/MemTotal/ {print $2}' /proc/meminfo")
    for mebibytes in (1536, 2048):
        state = await grown(vm, memory={"guest": f"{mebibytes}Mi"})
        assert (state.boot_memory, state.requested_memory) == (GI, mebibytes << 20)

        async def taken(wanted: int = mebibytes) -> bool:
            return (await vm.state()).memory == wanted << 20

        await eventually(taken)
        now = await sees(vm, "awk '/MemTotal/ {print $2}' /proc/meminfo")
        assert abs(now - before - (mebibytes - 1024 << 10)) < 16 << 10, "what a kernel needs for its own lists aside"
    again = await grown(vm, memory={"guest": "2Gi"})
    assert again.requested_memory == 2 * GI


async def test_a_guest_without_the_driver_has_what_it_had(vm: VM) -> None:
    """It says so of another guest: memory that nobody takes is not there."""
    vmi = machine()
    vmi["metadata"]["name"] = "other"
    vmi["spec"]["domain"] |= {"memory": {"guest": "1Gi", "maxGuest": "2Gi"}, "firmware": {"bootloader": {"bios": {}}}}
    vmi["spec"]["domain"]["devices"]["disks"] = []
    vmi["spec"]["volumes"] = []
    async with running(vmi) as empty:  # firmware that finds nothing to boot
        state = await grown(empty, memory={"guest": "2Gi"})
        assert (state.requested_memory, state.memory) == (2 * GI, GI)
