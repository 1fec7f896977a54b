"""What a guest finds on its disks and ports of all that is configured for it: one VM boots, and the tests look."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from virtfleet.api import names
from virtfleet.domain import paths
from virtfleet.launcher.probe import ask
from virtfleet.protocol.messages import Freeze, GetState, GuestExec, GuestPing, Reset, Status, Unfreeze
from vm.guests import VM, eventually, machine, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Volume -> its source in the VMI, and a file that it has.
SOURCES = {
    "settings": ({"configMap": {"name": "settings"}}, "colour"),
    "keys": ({"secret": {"secretName": "keys"}}, "password"),
    "answers": ({"sysprep": {"configMap": {"name": "answers"}}}, "unattend.xml"),
    "identity": ({"serviceAccount": {"serviceAccountName": "default"}}, "token"),
    "labels": ({"downwardAPI": {"fields": []}}, "labels"),
}
DRIVE = {"userData": "#cloud-config\n{}\n", "networkData": '{"links": []}'}
IGNITION = '{"ignition": {"version": "3.4.0"}}'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def vm() -> AsyncIterator[VM]:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        given = Path(directory)
        for name, (_, file) in SOURCES.items():
            (given / name).mkdir()
            (given / name / file).write_text(f"this is {file} of {name}\n")
        volumes = [
            {"name": "drive", "cloudInitConfigDrive": DRIVE},
            {"name": "metrics", "downwardMetrics": {}},
            *({"name": name, **source} for name, (source, _) in SOURCES.items()),
        ]
        vmi = machine(volumes)
        vmi["metadata"]["annotations"] = {names.IGNITION: IGNITION}
        vmi["spec"]["domain"]["devices"]["downwardMetrics"] = {}
        vmi["status"] = {"nodeName": "node-a"}
        async with running(vmi, **{name: given / name for name in SOURCES}) as booting:
            await booting.says(r"virtfleet-guest ready.*\n")
            await eventually(lambda: _agent(booting))
            yield booting


async def _agent(vm: VM) -> bool:
    return (await vm.state()).agent


async def shell(vm: VM, script: str) -> str:
    """What a script prints in the guest."""
    done = await vm.client.call(GuestExec(command=["/bin/sh", "-c", script], timeout_seconds=60))
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


async def mounted(vm: VM, volume: str, script: str) -> str:
    """The same, in the directory where the guest has the volume's disk mounted for that long."""
    disk = (await vm.state()).disks[volume]
    return await shell(vm, f"mkdir -p /m && mount -o ro /dev/{disk} /m && (cd /m; {script}); umount /m")


@pytest.mark.parametrize("volume", SOURCES)
async def test_configuration_is_on_a_disk_of_its_own(vm: VM, volume: str) -> None:
    file = SOURCES[volume][1]
    assert await mounted(vm, volume, f"cat {file}") == f"this is {file} of {volume}\n"


async def test_a_config_drive_has_the_layout_that_cloud_init_looks_for(vm: VM) -> None:
    assert await mounted(vm, "drive", "cat openstack/latest/user_data") == DRIVE["userData"]
    assert '"hostname":"guest"' in await mounted(vm, "drive", "cat openstack/latest/meta_data.json")
    assert await mounted(vm, "drive", "cat openstack/latest/network_data.json") == DRIVE["networkData"]
    disk = (await vm.state()).disks["drive"]
    assert await shell(vm, f"tail -c +32809 /dev/{disk} | head -c 8") == "config-2", "the label of the disk"


async def test_metrics_of_node_and_vm_are_on_their_disk(vm: VM) -> None:
    disk = (await vm.state()).disks["metrics"]

    async def told() -> str:
        past_the_cache = f"dd if=/dev/{disk} bs=4k count=2 iflag=direct 2>/dev/null"
        text = await shell(vm, f"{past_the_cache} | tail -c +17 | tr -d '\\000'")  # 16 bytes are a header
        return text if "TotalCPUTime" in text else ""

    text = await eventually(told)
    assert await shell(vm, f"head -c 4 /dev/{disk}") == "mvbd"
    assert re.search(r"<name>HostName</name>\s*<value>node-a</value>", text)
    assert re.search(r'context="vm">\s*<name>ResourceProcessorLimit</name>\s*<value>1</value>', text)


async def test_a_guest_asks_for_metrics_on_its_port(vm: VM) -> None:
    find = "for p in /sys/class/virtio-ports/*; do grep -q vhostmd $p/name && echo /dev/${p##*/}; done"
    port = (await shell(vm, find)).strip()
    # The answer ends with an empty line.
    answer = 'while read -r line <&3 && [ -n "$line" ]; do echo "$line"; done'
    question = f"exec 3<>{port}; printf 'GET /metrics/XML\\n\\n' >&3; {answer}"
    assert "<name>VirtProductInfo</name>" in await shell(vm, question)
    assert "INVALID REQUEST" in await shell(vm, question.replace("GET /", "PUT /"))


async def test_ignition_finds_its_configuration_in_the_firmware(vm: VM) -> None:
    file = paths.ignition("default", "guest")
    emulator = next(pid for name, pid in vm.processes().items() if name.startswith("qemu-system"))
    assert f"name=opt/com.coreos/config,file={file}" in _arguments(emulator)
    assert vm.standalone.sandbox.path(file).read_text() == IGNITION


def _arguments(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")


async def test_a_frozen_guest_is_thawed_when_nobody_does(vm: VM) -> None:
    await vm.client.call(Freeze(timeout_seconds=1))
    await eventually(lambda: "nobody thawed the guest's file systems" in vm.standalone.log.read_text())
    await eventually(lambda: _writes(vm))
    assert not (await vm.client.call(GetState())).frozen
    await vm.client.call(Freeze(timeout_seconds=0))
    await vm.client.call(Freeze(timeout_seconds=0))  # frozen already
    assert (await vm.client.call(GetState())).frozen
    await vm.client.call(Unfreeze())
    assert await _writes(vm)


async def _writes(vm: VM) -> bool:
    """Whether the guest's agent works again: it runs nothing while file systems are frozen."""
    try:
        return await shell(vm, "echo thawed") == "thawed\n"
    except Exception as error:
        assert "frozen" in str(error) or "disabled" in str(error) or "not allowed" in str(error), error
        return False


async def test_a_probe_asks_the_guest_as_the_kubelet_would(vm: VM) -> None:
    socket = str(vm.standalone.sandbox.path(f"{paths.SOCKETS}/launcher-sock"))
    assert await ask(socket, [], 30) == 0
    assert await ask(socket, ["/bin/sh", "-c", "exit 7"], 30) == 7


async def test_a_reset_boots_the_guest_anew(vm: VM) -> None:
    before = vm.processes()
    await vm.client.call(Reset())
    await vm.says(r"virtfleet-guest ready.*\n")
    assert vm.processes() == before
    assert (await vm.state()).status is Status.RUNNING
    await eventually(lambda: _answers(vm))


async def _answers(vm: VM) -> bool:
    try:
        await vm.client.call(GuestPing())
    except Exception:
        return False
    return True
