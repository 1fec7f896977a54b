"""Whether a hypervisor works on this machine, step by step, up to a tiny guest that is heard and stopped.

The first steps are those by which a node earns its label (`launcher.node.trial`); the others are what a launcher does
for every VM, in a sandbox of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import libvirt
import msgspec

from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.node import trial
from virtfleet.protocol.client import LauncherGone, Refused
from virtfleet.protocol.messages import Kill, Status

WORD = "VirtFleet"
_PATIENCE = 60.0  # seconds for each step; a guest whose CPUs are emulated needs a few
# A boot sector that writes the word to the first serial port, over and over: it waits for the port to be free, sends
# the next letter, and begins again at the end.
_BOOT_SECTOR = (
    bytes.fromhex("31c0 8ed8 be1e7c ac 84c0 74f8 88c4 bafd03 ec a820 74fb 88e0 baf803 ee ebe9")
    + f"{WORD}\r\n\0".encode()
).ljust(510, b"\0") + b"\x55\xaa"
_SAYS = f"while :; do echo {WORD}; sleep 1; done"
_BUSYBOX = "/bin/busybox"


class Step(msgspec.Struct, frozen=True):
    """One step that was taken."""

    name: str
    trouble: str
    """Why it failed; "" where it did not."""
    seconds: float


async def check(hypervisor: Hypervisor, *, emulate: bool = False) -> AsyncIterator[Step]:
    """The steps, up to the first that fails. `emulate` leaves out what only hardware virtualisation needs."""
    began = time.monotonic()
    for name, trouble in trial.steps(hypervisor, emulated=emulate):
        yield Step(name, trouble, time.monotonic() - began)
        if trouble:
            return
        began = time.monotonic()
    with _guest(hypervisor) as (vmi, sources):
        async with Standalone(vmi, hypervisor, Context(emulated=emulate), sources) as vm:
            for name, act in _taken(hypervisor, vm):
                began = time.monotonic()
                trouble = await _trouble(act)
                yield Step(name, trouble, time.monotonic() - began)
                if trouble:
                    return


def _taken(hypervisor: Hypervisor, vm: Standalone) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "a launcher starts, with its libvirt", vm.open
    yield "a guest is defined and starts", lambda: _started(vm)
    if hypervisor.has("serial-console"):
        yield "the guest is heard on its console", lambda: _heard(vm.console)
    yield "the guest is stopped", lambda: _stopped(vm)


async def _trouble(act: Callable[[], Any]) -> str:
    try:
        async with asyncio.timeout(_PATIENCE):
            await act()
    except TimeoutError:
        return f"not within {_PATIENCE:.0f} s"
    except (OSError, Failure, DomainError, Refused, LauncherGone, libvirt.libvirtError) as error:
        return str(error) or type(error).__name__
    return ""


async def _started(vm: Standalone) -> None:
    state = await vm.sync(vm.vmi)
    if state.status is not Status.RUNNING:
        raise Failure(f"it is {state.status}: {state.reason}")


async def _heard(console: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(console)
    try:
        said = b""
        while WORD.encode() not in said:
            more = await reader.read(4096)
            if not more:
                raise Failure(f"the console ended after {said[-200:]!r}")
            said = (said + more)[-4096:]
    finally:
        writer.close()


async def _stopped(vm: Standalone) -> None:
    asked = False
    async for update in vm.client.watch():
        if update.state.status.ended:
            return
        if not asked:  # once it is watched: the launcher ends with its guest
            await vm.client.call(Kill())
            asked = True
    raise Failure("the launcher ended and did not say what became of its guest")


@contextmanager
def _guest(hypervisor: Hypervisor) -> Iterator[tuple[dict[str, Any], dict[str, Path]]]:
    """A guest that says one word: a boot sector, or a container with a shell in it."""
    with TemporaryDirectory(prefix="virtfleet-check-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        place.chmod(0o755)
        devices: dict[str, Any] = {"autoattachGraphicsDevice": False}
        firmware: dict[str, Any] = {}
        if hypervisor.descriptor.container:
            root = place / "root"
            for inside in ("bin", "dev", "proc", "sys", "tmp"):
                (root / inside).mkdir(parents=True)
            shutil.copy(shutil.which("busybox") or _BUSYBOX, root / "bin/busybox")
            os.symlink("busybox", root / "bin/sh")
            os.symlink("busybox", root / "bin/sleep")
            devices["filesystems"] = [{"name": "rootfs", "virtiofs": {}}]
            volume: dict[str, Any] = {"containerDisk": {"image": "check"}}
            firmware = {"firmware": {"kernelBoot": {"kernelArgs": f"init=/bin/sh -- -c '{_SAYS}'"}}}
            source = root
        else:
            source = place / "disk.img"
            source.write_bytes(_BOOT_SECTOR.ljust(1 << 20, b"\0"))
            source.chmod(0o666)
            bus = hypervisor.descriptor.disk_bus
            devices["disks"] = [{"name": "rootfs", "disk": {"bus": bus}, "bootOrder": 1}]
            volume = {"persistentVolumeClaim": {"claimName": "check"}}
        yield (
            {
                "metadata": {"name": "check", "namespace": "default", "uid": str(uuid.uuid4())},
                "spec": {
                    "architecture": "amd64",
                    "domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": 1}, "devices": devices, **firmware},
                    "volumes": [{"name": "rootfs", **volume}],
                },
            },
            {"rootfs": source},
        )
