"""How a VM ends, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from virtfleet.protocol.client import LauncherGone
from virtfleet.protocol.messages import GetState, Kill, Shutdown, Status
from vm.guests import VM, eventually, machine, running


def leftovers(vm: VM) -> list[str]:
    """Processes and mounts of a sandbox."""
    found = [f"process {name}" for name in (vm.processes() if _alive(vm) else {})]
    directory = str(vm.standalone.sandbox.directory)
    return found + [line for line in Path("/proc/mounts").read_text().splitlines() if directory in line]


def _alive(vm: VM) -> bool:
    process = vm.standalone.sandbox.process
    return process is not None and process.returncode is None


async def test_a_guest_shuts_down_when_it_is_asked_to() -> None:
    async with running(machine()) as vm:
        await vm.says(r"virtfleet-guest ready.*\n")
        await vm.client.call(Shutdown(grace_seconds=100))
        last, code = await vm.ending()
        assert (last.status, last.reason, last.killed) == (Status.SHUTOFF, "Shutdown", False)
        assert code == 0
        assert "virtfleet-guest poweroff" in vm.output
        directory = vm.standalone.sandbox.directory
    assert not leftovers(vm)
    assert not directory.exists()


async def test_a_guest_that_does_not_listen_is_killed_when_its_time_is_over() -> None:
    async with running(machine(terminationGracePeriodSeconds=1)) as vm:
        await vm.client.call(Shutdown())  # it has hardly begun to boot
        last, code = await vm.ending()
        assert (last.status, last.reason, last.killed) == (Status.SHUTOFF, "Destroyed", True)
        assert code == 0


async def test_the_signal_that_ends_a_pod_gives_the_guest_its_time_to_shut_down() -> None:
    async with running(machine(terminationGracePeriodSeconds=100)) as vm:
        await vm.says(r"virtfleet-guest ready.*\n")
        os.kill(vm.processes()["launcher"], signal.SIGTERM)
        last, code = await vm.ending()
        assert (last.status, last.reason) == (Status.SHUTOFF, "Shutdown")
        assert last.stopping and not last.killed
        assert code == 0
    assert not leftovers(vm)


async def test_a_killed_emulator_is_a_crash() -> None:
    async with running(machine()) as vm:
        emulator = next(pid for name, pid in vm.processes().items() if name.startswith("qemu-system"))
        os.kill(emulator, signal.SIGKILL)
        last, code = await vm.ending()
        assert (last.status, last.reason) == (Status.SHUTOFF, "Crashed")
        assert code == 1
    assert not leftovers(vm)


async def test_an_emulator_that_dies_while_libvirt_is_away_is_a_crash_too() -> None:
    async with running(machine()) as vm:
        processes = vm.processes()
        for name, pid in processes.items():
            if name in ("libvirtd", "virtqemud") or name.startswith("qemu-system"):
                os.kill(pid, signal.SIGKILL)
        last, code = await vm.ending()
        assert (last.status, last.reason) == (Status.SHUTOFF, "Crashed")
        assert code == 1


async def test_a_killed_launcher_takes_everything_with_it() -> None:
    async with running(machine()) as vm:
        processes = vm.processes()
        os.kill(processes["launcher"], signal.SIGKILL)
        assert vm.standalone.sandbox.process is not None
        assert await vm.standalone.sandbox.process.wait() != 0
        await eventually(lambda: not [pid for pid in processes.values() if Path(f"/proc/{pid}").exists()])
        try:
            await vm.client.call(GetState())
        except LauncherGone:
            pass
        else:
            raise AssertionError("a dead launcher answered")
    assert not leftovers(vm)


async def test_a_guest_that_starts_paused_waits_and_can_be_killed() -> None:
    async with running(machine(startStrategy="Paused")) as vm:
        state = await vm.state()
        assert (state.status, state.reason) == (Status.PAUSED, "User")
        await vm.client.call(Kill())
        last, code = await vm.ending()
        assert (last.reason, code) == ("Destroyed", 0)
