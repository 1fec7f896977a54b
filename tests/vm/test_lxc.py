"""A container runs through the same launcher."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import GetState, Shutdown, Status
from vm.guests import container, eventually, running, standing_alone, user_data

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="libvirt's containers need /dev/fuse")


async def test_a_container_starts_runs_and_stops() -> None:
    async with running(container([user_data("echo the seed has arrived")]), "lxc") as vm:
        await vm.says(r"the seed has arrived")
        await vm.says(r"virtfleet-guest ready name=guest address=10\.0\.2\.2")
        assert "10.0.2.2" in await vm.standalone.sandbox.run("busybox", "wget", "-q", "-O", "-", "http://10.0.2.2/")
        await vm.type("echo typed into the container")
        await vm.says(r"\ntyped into the container")
        await vm.client.call(Shutdown(grace_seconds=60))
        last, code = await vm.ending()
        assert (last.status, last.reason, last.killed) == (Status.SHUTOFF, "Shutdown", False)
        assert code == 0


async def test_syncing_again_leaves_a_container_as_it_is() -> None:
    """A handler that restarts, or one that takes over from another, says the same again."""
    async with running(container(), "lxc") as vm:
        await vm.says(r"virtfleet-guest ready")
        links = await vm.standalone.sandbox.run("ip", "-o", "link")
        assert (await vm.standalone.sync(vm.standalone.vmi)).status is Status.RUNNING
        await vm.standalone.client.close()
        vm.standalone.client = await vm.standalone._connect()  # as a handler that was started again
        assert (await vm.standalone.sync(vm.standalone.vmi)).status is Status.RUNNING
        assert await vm.standalone.sandbox.run("ip", "-o", "link") == links
        await vm.type("echo interfaces: $(ls /sys/class/net)")
        assert (await vm.says(r"\ninterfaces: (.*)"))[1].split() == ["eth0", "lo"]


async def test_a_console_that_cannot_be_served_at_first_is_served_by_the_next_sync() -> None:
    async with standing_alone(container(), "lxc") as standalone:
        standalone.console.mkdir(parents=True)  # where the socket belongs
        with pytest.raises(Refused, match="the VM runs, but its console cannot be served"):
            await standalone.start()
        assert (await standalone.client.call(GetState())).status is Status.RUNNING
        standalone.console.rmdir()
        await standalone.sync(standalone.vmi)
        assert standalone.console.is_socket()


def alive(processes: dict[str, int]) -> list[str]:
    return [name for name, process in processes.items() if os.path.exists(f"/proc/{process}")]


async def test_a_container_outlives_libvirts_daemon_and_leaves_nothing_when_it_is_killed() -> None:
    async with running(container(), "lxc") as vm:
        await vm.says(r"virtfleet-guest ready")
        before = vm.processes()
        daemon = "libvirtd" if "libvirtd" in before else "virtlxcd"
        os.kill(before[daemon], signal.SIGKILL)
        await eventually(lambda: vm.processes().get(daemon, before[daemon]) != before[daemon])
        assert (await vm.state()).status is Status.RUNNING
        await vm.type("echo still here")
        await vm.says(r"\nstill here")
        os.kill(before["libvirt_lxc"], signal.SIGKILL)
        last, _ = await vm.ending()
        assert last.status is Status.SHUTOFF  # libvirt's driver cannot tell such an end from a shutdown
    assert not alive(before)


def _forget(noted: Path) -> None:
    noted.write_text(re.sub(r"<init pid=[^>]*/>", "", noted.read_text()))


async def test_a_container_shuts_down_also_where_libvirt_has_missed_which_process_is_its_first() -> None:
    async with running(container(), "lxc") as vm:
        await vm.says(r"virtfleet-guest ready")
        before = vm.processes()
        daemon = "libvirtd" if "libvirtd" in before else "virtlxcd"
        noted = Path(f"/proc/{before['launcher']}/root/run/libvirt/lxc/default_guest.xml")
        await eventually(lambda: "<init pid=" in noted.read_text())
        _forget(noted)
        os.kill(before[daemon], signal.SIGKILL)
        await eventually(lambda: vm.processes().get(daemon, before[daemon]) != before[daemon])
        await vm.client.call(Shutdown())
        last, _ = await vm.ending()
        assert last.status is Status.SHUTOFF and not last.killed
    assert not alive(before)
