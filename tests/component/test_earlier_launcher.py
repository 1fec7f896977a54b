"""This version's handler with the launcher of version 0.1.0, which lives on in the Pods of VMs that run: a real guest.

The fixture holds the launcher's part of 0.1.0's tree. Our own makes the sandbox that stands for the Pod, and the
earlier one runs in it. After a roll-back it is the other way round: then 0.1.0's side of the socket is the handler's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from handler_kit import api_server, handler
from test_handler_reconcile import phase, until, vmi
from test_handlers_move import EMULATED, begin, own_devices, pod, scheduled

from component.moving import Place, counted, counting, image
from tests.waiting import eventually
from virtfleet import __version__
from virtfleet.handler.vms.reconcile import NodeVms
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.messages import COMMAND_SOCKET, GetStats, Pause, Status, Unpause

__all__ = ["own_devices"]

EARLIER = Path(__file__).parents[1] / "fixtures/launcher-0.1.0.tar.gz"
INSIDE = "virtfleet.launcher.alone.inside"
# In the place of Python: what makes the sandbox is ours, and told to go on with this script, which runs the other tree.
PYTHON = """\
#!/bin/sh
if [ "$2" = {inside} ]; then
    shift 2
    exec {python} -c 'import runpy, sys
sys.executable = "{here}"
runpy.run_module("{inside}", run_name="__main__")' "$@"
fi
PYTHONPATH={tree} exec {python} "$@"
"""

# What a handler of 0.1.0 asks of a launcher.
ASK = """
import asyncio, sys
from virtfleet.launcher.client import Client
from virtfleet.launcher.messages import GetState, GetStats, Kill, Pause, Status, Unpause

async def main():
    async with await Client.connect(sys.argv[1]) as launcher:
        async def becomes(status):
            while (await launcher.call(GetState())).status is not status:
                await asyncio.sleep(0.05)

        async for update in launcher.watch():
            print(launcher.version, launcher.vmi, *sorted(update.state.disks))
            break
        for request, status in ((Pause(), Status.PAUSED), (Unpause(), Status.RUNNING)):
            await launcher.call(request)
            await becomes(status)
        assert (await launcher.call(GetStats())).values
        await launcher.call(Kill())

asyncio.run(asyncio.wait_for(main(), 60))
"""


@dataclass
class Node:
    """A node with a VM in an earlier launcher's Pod."""

    api: InProcessApi
    vms: NodeVms
    place: Place

    async def condition(self, kind: str) -> Obj:
        def said(status: Obj) -> Obj | None:
            return next((c for c in status.get("conditions") or () if c["type"] == kind), None)

        found = said((await until(self.api, said))["status"])
        assert found
        return found

    async def goes_on(self) -> None:
        before = len(counted(self.place.said))
        await asyncio.to_thread(eventually, lambda: len(counted(self.place.said)) > before + 5)


@pytest.fixture
def tree(place: Path) -> Path:
    """The sources of 0.1.0."""
    os.chmod(place, 0o755)
    with tarfile.open(EARLIER) as archive:
        archive.extractall(place / "tree")
    return place / "tree" / "src"


@pytest.fixture
def earlier(place: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers of sandboxes are those of 0.1.0."""
    script = place / "python"
    script.write_text(PYTHON.format(inside=INSIDE, python=sys.executable, here=script, tree=tree))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.fixture
async def node(place: Path, earlier: None, own_devices: None) -> AsyncIterator[Node]:
    disk = image(place / "disk.img")
    async with api_server(place) as api, AsyncExitStack() as stack:
        made = await stack.enter_async_context(
            pod(place / "a", "pod-a", await scheduled(api), disk, place / "emulators")
        )
        vms = await stack.enter_async_context(handler(api, place / "a", EMULATED))
        await phase(api, "Running")
        yield Node(api, vms, made)


async def test_a_guest_in_an_earlier_launcher_is_served_and_stays_where_it_is(node: Node) -> None:
    running = node.vms.running("default/vm")
    assert running
    launcher = running[1].launcher
    assert launcher.version == "0.1.0"
    assert launcher.state and launcher.state.disks and not launcher.state.machine, (
        "it is the one that did not say it yet"
    )
    await node.goes_on()
    status = (await vmi(node.api))["status"]
    assert {v["name"]: v.get("target") for v in status["volumeStatus"]} == launcher.state.disks

    await launcher.call(Pause())
    await asyncio.to_thread(eventually, lambda: launcher.state and launcher.state.status is Status.PAUSED)
    await until(node.api, lambda s: any(c["type"] == "Paused" for c in s["conditions"]))
    await launcher.call(Unpause())
    await node.goes_on()
    assert await launcher.call(GetStats())

    fixed = await node.condition("LiveMigratable")
    assert fixed["status"] == "False"
    assert "virt-launcher 0.1.0" in fixed["message"] and "restart the VM" in fixed["message"], fixed
    await begin(node.api)
    state = (await until(node.api, lambda s: (s.get("migrationState") or {}).get("failed")))["status"]
    assert "restart the VM" in state["migrationState"]["failureReason"]
    await node.goes_on()

    await node.api.delete(VMIS, "vm", "default")
    await asyncio.to_thread(eventually, lambda: not node.place.processes("qemu-system"))


async def test_an_earlier_launcher_is_no_target(place: Path, earlier: None, own_devices: None) -> None:
    disk = image(place / "disk.img")
    async with api_server(place) as api, AsyncExitStack() as stack:
        wanted = await scheduled(api)
        await api.patch(VMIS, "vm", {"status": {"phase": "Running"}}, "default")
        await stack.enter_async_context(pod(place / "b", "pod-b", wanted, disk, place / "emulators"))
        await stack.enter_async_context(handler(api, place / "b", EMULATED, node="n2"))
        await begin(api)
        state = (await until(api, lambda s: (s.get("migrationState") or {}).get("failed")))["status"]["migrationState"]
        assert "virt-launcher 0.1.0" in state["failureReason"], state


@pytest.mark.slow
async def test_an_earlier_handler_commands_a_launcher_of_this_version(place: Path, tree: Path) -> None:
    vmi = counting(interfaces=[], autoattachPodInterface=False)
    del vmi["spec"]["networks"]
    async with Place(vmi, image(place / "disk.img"), place / "emulators") as made:
        await made.start()
        ask = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASK, str(made.sandbox.path(COMMAND_SOCKET))),
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await ask.communicate()
        assert ask.returncode == 0
        assert said.decode().split() == [__version__, vmi["metadata"]["uid"], "data", "root"]
        await asyncio.to_thread(eventually, lambda: not made.processes("qemu-system"))
