"""A container runs through the same launcher."""

from __future__ import annotations

import os

import pytest

from virtfleet.launcher.messages import Shutdown, Status
from vm.guests import container, running, user_data

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
