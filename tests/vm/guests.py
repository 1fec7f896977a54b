"""Real guests for tests: a VM in a sandbox, its console, and what it says there."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from virtfleet.admission.review import complete
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.local import guestimage
from virtfleet.protocol.messages import DomainState, GetState, Update
from waiting import pause

T = TypeVar("T")
PATIENCE = 100.0  # an emulated guest on a machine that has other things to do
POLL = 0.05


async def eventually(condition: Callable[[], Awaitable[T] | T], deadline: float = 0.0) -> T:
    """The first truthy value of `condition`; the last one is shown if it never comes."""
    deadline = deadline or PATIENCE
    end = time.monotonic() + deadline
    value: Any = None
    while (began := time.monotonic()) < end:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        await asyncio.sleep(max(POLL, pause(time.monotonic() - began)))
    raise AssertionError(f"did not come true within {deadline} s; last: {value!r}")


@cache
def guest() -> guestimage.Guest:
    if os.geteuid() != 0:
        pytest.skip("namespaces and network interfaces need root")
    return guestimage.build(guestimage.default_cache())


def machine(volumes: Sequence[dict[str, Any]] = (), **spec: Any) -> dict[str, Any]:
    """A VMI that boots our guest, with further volumes on disks of their own; `spec` adds to it."""
    disks = [{"name": name, "disk": {"bus": "virtio"}} for name in ("root", *(volume["name"] for volume in volumes))]
    interfaces = [{"name": "default", "masquerade": {}}]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "guest", "namespace": "default"},
        "spec": {
            "domain": {
                "memory": {"guest": "128Mi"},
                "devices": {"rng": {}, "disks": disks, "interfaces": interfaces},
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": {"image": guestimage.IMAGE}}, *volumes],
            **spec,
        },
    }


def container(volumes: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """A VMI whose guest is a container."""
    vmi = machine(volumes, hypervisor="lxc")
    vmi["spec"]["volumes"][0]["name"] = "rootfs"
    vmi["spec"]["domain"]["devices"] = {
        "autoattachGraphicsDevice": False,
        "autoattachMemBalloon": False,
        "filesystems": [{"name": "rootfs", "virtiofs": {}}],
        "disks": [{"name": volume["name"], "disk": {"bus": "virtio"}} for volume in volumes],
        "interfaces": [{"name": "default", "masquerade": {}}],
    }
    return vmi


def user_data(*commands: str) -> dict[str, Any]:
    """A volume with a seed that runs commands."""
    lines = "".join(f"- {command}\n" for command in commands)
    return {"name": "seed", "cloudInitNoCloud": {"userData": f"#cloud-config\nruncmd:\n{lines}"}}


def admitted(vmi: dict[str, Any]) -> dict[str, Any]:
    """The VMI as the API server would store it."""
    gates = {"featureGates": ["DownwardMetrics", "ExperimentalIgnitionSupport"]}
    completed, found = complete(vmi, Installation({"spec": {"configuration": {"developerConfiguration": gates}}}))
    assert found.allowed, found.causes
    completed["metadata"]["uid"] = str(uuid.uuid4())
    completed["status"] = {**completed.get("status", {}), **vmi.get("status", {})}  # as components would write it
    return completed


class VM:
    """A running VM."""

    def __init__(self, standalone: Standalone) -> None:
        self.standalone = standalone
        self.client = standalone.client
        self._read = 0
        self._console: asyncio.StreamWriter | None = None
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> list[Update]:
        return [update async for update in self.client.watch()]

    @property
    def output(self) -> str:
        """All that the guest has said on its console."""
        try:
            return Path(f"{self.standalone.console}-log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until the guest says something new on its console."""
        match = await eventually(lambda: re.compile(pattern).search(self.output, self._read))
        self._read = match.end()
        return match

    async def type(self, line: str) -> None:
        if self._console is None:
            _, self._console = await asyncio.open_unix_connection(self.standalone.console)
        self._console.write(line.encode() + b"\n")
        await self._console.drain()

    async def state(self) -> DomainState:
        return await self.client.call(GetState())

    async def ending(self) -> tuple[DomainState, int]:
        """The last state that the launcher told, and its exit status."""
        assert self.standalone.sandbox.process is not None
        updates = await self._watching
        return updates[-1].state, await self.standalone.sandbox.process.wait()

    def resident(self, program: str) -> int:
        """Memory of a process, in KiB."""
        status = Path(f"/proc/{self.processes()[program]}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def processes(self) -> dict[str, int]:
        """The sandbox's processes: pid by name of the program."""
        found = {}
        namespace = os.readlink(f"/proc/{self._first()}/ns/pid")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.readlink(entry / "ns/pid") == namespace:
                        program = (entry / "cmdline").read_bytes().split(b"\0")
                        name = "launcher" if b"virtfleet.launcher" in program else os.path.basename(program[0].decode())
                        found[name] = int(entry.name)
                except OSError:
                    continue
        return found

    def _first(self) -> str:
        assert self.standalone.sandbox.process is not None
        parent = self.standalone.sandbox.process.pid
        return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0]


def standing_alone(vmi: dict[str, Any], hypervisor: str = "qemu-kvm", **sources: Path) -> Standalone:
    """The launcher of a VMI, not started yet."""
    volumes = {volume["name"]: guest().image for volume in vmi["spec"]["volumes"] if "containerDisk" in volume}
    context = Context(emulated=hypervisor == "qemu-kvm")
    capabilities = guestimage.default_cache() / "capabilities"
    chosen = registry.get(hypervisor)
    return Standalone(admitted(vmi), chosen, context, {**volumes, **sources}, cache=capabilities)


@asynccontextmanager
async def running(vmi: dict[str, Any], hypervisor: str = "qemu-kvm", **sources: Path) -> AsyncIterator[VM]:
    """The VM of a VMI, which ends with the context. What its launcher said is shown where a test fails."""
    async with standing_alone(vmi, hypervisor, **sources) as standalone:
        try:
            await standalone.start()
            yield VM(standalone)
        finally:
            sys.stderr.write(standalone.log.read_text(errors="replace")[-4000:])
