"""What a guest sees and does on QEMU: one VM boots, and the tests use it one after the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from virtfleet.protocol.messages import (
    DomainState,
    Freeze,
    GetGuestInfo,
    GetState,
    GetStats,
    GuestExec,
    GuestPing,
    Pause,
    Screenshot,
    SoftReboot,
    Status,
    Unfreeze,
    Unpause,
)
from vm.guests import VM, eventually, machine, running, user_data

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def vm() -> AsyncIterator[VM]:
    vmi = machine([user_data("echo the seed has arrived"), {"name": "scratch", "emptyDisk": {"capacity": "64Mi"}}])
    async with running(vmi) as booting:
        await booting.says(r"virtfleet-guest ready.*\n")
        yield booting


async def test_a_guest_boots_with_its_address_and_its_seed(vm: VM) -> None:
    assert "the seed has arrived" in vm.output
    assert "ready name=guest address=10.0.2.2" in vm.output
    assert (
        await vm.standalone.sandbox.run("busybox", "wget", "-q", "-O", "-", "http://10.0.2.2/")
        == "hello from guest at 10.0.2.2\n"
    )


async def test_disks_have_the_size_and_place_that_was_asked_for(vm: VM) -> None:
    state = await vm.state()
    assert state.disks == {"root": "vda", "seed": "vdb", "scratch": "vdc"}
    assert nics(state) == {"default"}
    await vm.type("cat /sys/block/vdc/size")
    await vm.says(rf"\n{64 * 2**20 // 512}\r?\n")


async def test_the_agent_tells_what_it_knows_and_runs_commands(vm: VM) -> None:
    await eventually(lambda: _agent(vm))
    info = await vm.client.call(GetGuestInfo())
    assert info.os["id"] == "virtfleet-guest"
    assert info.hostname == "guest"
    assert "10.0.2.2/24" in {address for i in info.interfaces for address in i.addresses}
    assert "guest-ping" in info.commands
    await vm.client.call(GuestPing())
    done = await vm.client.call(GuestExec(command=["/bin/sh", "-c", "echo out; exit 3"]))
    assert (done.exit_code, done.stdout) == (3, b"out\n")


def nics(state: DomainState) -> set[str]:
    assert state.abi is not None
    return {device.name.rpartition("/")[2] for device in state.abi.devices if device.mac}


async def _agent(vm: VM) -> bool:
    return (await vm.state()).agent


async def test_a_paused_guest_stands_still_until_it_is_unpaused(vm: VM) -> None:
    await vm.client.call(Pause())
    state = await vm.state()
    assert (state.status, state.reason) == (Status.PAUSED, "User")
    await vm.type("echo and on it goes")
    before = len(vm.output)
    await vm.client.call(Unpause())
    assert (await vm.state()).status is Status.RUNNING
    await vm.says(r"\nand on it goes")
    assert len(vm.output) > before


async def test_a_screenshot_is_a_png_of_the_screen(vm: VM) -> None:
    png = (await vm.client.call(Screenshot())).png
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack("!II", png[16:24])
    assert width >= 640 and height >= 400


async def test_the_screen_is_served_on_a_socket(vm: VM) -> None:
    reader, writer = await asyncio.open_unix_connection(vm.standalone.console.with_name("virt-vnc"))
    assert (await reader.readexactly(8)).startswith(b"RFB 003.")
    writer.close()


async def test_virsh_finds_the_guest_by_the_socket_that_people_know(vm: VM) -> None:
    socket = vm.standalone.sandbox.path("/var/run/libvirt/virtqemud-sock")
    assert os.readlink(socket) == "/var/run/libvirt/libvirt-sock"
    uri = f"qemu+unix:///session?socket={socket.with_name('libvirt-sock')}"
    virsh = await asyncio.create_subprocess_exec("virsh", "-c", uri, "list", "--name", stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(virsh.communicate(), 30)
    assert said.decode().split() == ["default_guest"]


async def test_file_systems_are_frozen_and_thawed_by_the_agent(vm: VM) -> None:
    await eventually(lambda: _agent(vm))
    await vm.client.call(Freeze(timeout_seconds=60))
    assert (await vm.client.call(GetState())).frozen
    await vm.client.call(Unfreeze())
    assert not (await vm.client.call(GetState())).frozen
    await vm.client.call(GuestPing())


@pytest.fixture
def image() -> Iterator[Path]:
    """A disk image where the launcher's user can get at it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"added while it ran".ljust(1 << 20, b"\0"))
        file.flush()
        os.chmod(file.name, 0o666)
        yield Path(file.name)


async def test_a_disk_comes_and_goes_while_the_guest_runs(vm: VM, image: Path) -> None:
    before, vmi = _copy(vm), _copy(vm)
    vmi["spec"]["domain"]["devices"]["disks"].append({"name": "added", "disk": {"bus": "scsi"}})
    vmi["spec"]["volumes"].append(
        {"name": "added", "persistentVolumeClaim": {"claimName": "added", "hotpluggable": True}}
    )
    names = [volume["name"] for volume in vmi["spec"]["volumes"]]
    vmi["status"] = {"volumeStatus": [{"name": name} for name in names[:-1]]}
    vmi["status"]["volumeStatus"].append({"name": "added", "hotplugVolume": {}, "phase": "MountedToPod"})
    vm.standalone.vmi = vmi
    vm.standalone.link_volumes({"root": Path("/"), "added": image})
    state = await vm.standalone.sync(vmi)
    assert state.disks["added"] == "sda"
    await vm.says(r"virtfleet-guest disk sda added")
    await vm.type("head -c 18 /dev/sda; echo")
    await vm.says(r"\nadded while it ran")
    await vm.standalone.sync(before)
    await vm.says(r"virtfleet-guest disk sda removed")
    await eventually(lambda: _without(vm, "added"))


async def test_an_interface_comes_and_goes_while_the_guest_runs(vm: VM) -> None:
    before, vmi = _copy(vm), _copy(vm)
    vmi["spec"]["domain"]["devices"]["interfaces"].append({"name": "second", "bridge": {}})
    vmi["spec"]["networks"].append({"name": "second", "multus": {"networkName": "second"}})
    state = await vm.standalone.sync(vmi)
    assert "second" in nics(state)
    await vm.says(r"virtfleet-guest interface eth1 added")
    await vm.type("ip addr show eth1 | grep inet")
    await vm.says(r"inet 10\.0\.3\.2/24")
    await vm.standalone.sync(before)
    await vm.says(r"virtfleet-guest interface eth1 removed")
    await eventually(lambda: _without(vm, "second"))


async def _without(vm: VM, device: str) -> bool:
    state = await vm.state()
    return device not in {*state.disks, *nics(state)}


async def test_a_killed_libvirt_daemon_comes_back_and_the_guest_does_not_notice(vm: VM) -> None:
    before = vm.processes()
    daemon = "libvirtd" if "libvirtd" in before else "virtqemud"
    os.kill(before[daemon], signal.SIGKILL)
    await eventually(lambda: vm.processes().get(daemon, before[daemon]) != before[daemon])
    assert (await vm.state()).status is Status.RUNNING
    assert _emulator(vm) == _emulator_in(before)
    await vm.client.call(Pause())
    await vm.client.call(Unpause())
    await vm.type("echo still here")
    await vm.says(r"\nstill here")


async def test_what_the_vm_used_is_counted(vm: VM) -> None:
    values = (await vm.client.call(GetStats())).values
    assert values["cpu.time"] > 0
    assert values["vcpu.current"] == 1
    assert values["block.count"] >= 3
    assert json.dumps(values)


async def test_the_launcher_stays_small(vm: VM) -> None:
    assert vm.resident("launcher") < 42 << 10  # of which what closes the images of disks that were plugged out is 1


async def test_a_guest_reboots_when_it_is_asked_to(vm: VM) -> None:
    emulator = _emulator(vm)
    await vm.client.call(SoftReboot())
    await vm.says(r"virtfleet-guest ready.*\n")
    assert _emulator(vm) == emulator
    assert (await vm.state()).status is Status.RUNNING


def _copy(vm: VM) -> dict:  # type: ignore[type-arg]
    return orjson.loads(orjson.dumps(vm.standalone.vmi))


def _emulator(vm: VM) -> int:
    return _emulator_in(vm.processes())


def _emulator_in(processes: dict[str, int]) -> int:
    return next(pid for name, pid in processes.items() if name.startswith("qemu-system"))
