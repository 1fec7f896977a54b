"""What one VM costs beside itself, and how long it takes to start, against QEMU started by hand in the same run."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bench import footprint
from bench.report import Figure
from virtfleet.admission.review import complete
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.local import guestimage

TITLE = "launcher: memory and start of one VM"

_ROUNDS = 5
_DEADLINE = 120.0
_READY = "virtfleet-guest ready"
_GUEST_MIB = 128
_VMI: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "domain": {
            "memory": {"guest": f"{_GUEST_MIB}Mi"},
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": guestimage.IMAGE}}],
    },
}

_CONTAINER: dict[str, Any] = {
    **_VMI,
    "spec": {
        **_VMI["spec"],
        "hypervisor": "lxc",
        "domain": {
            "memory": {"guest": f"{_GUEST_MIB}Mi"},
            "devices": {
                "autoattachGraphicsDevice": False,
                "autoattachMemBalloon": False,
                "filesystems": [{"name": "rootfs", "virtiofs": {}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "volumes": [{"name": "rootfs", "containerDisk": {"image": guestimage.IMAGE}}],
    },
}


async def run() -> list[Figure]:
    guest = guestimage.build(guestimage.default_cache())
    qemu, lxc = registry.get("qemu-kvm").descriptor, registry.get("lxc").descriptor
    ours, by_hand = [], []
    for number in range(_ROUNDS + 1):
        began = time.perf_counter()
        async with _launched(guest):
            ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        with _bare(guest, lambda directory: _running(directory / "qmp")):
            by_hand.append(time.perf_counter() - began)
        if number == 0:  # what is cached for the machine is cached now
            ours.clear()
            by_hand.clear()
    began = time.perf_counter()
    async with _launched(guest) as vm:
        await _ready(vm)
        booted = time.perf_counter() - began
        seen = footprint.resident(vm, qemu, _GUEST_MIB * 1024)
    async with _launched(guest, _CONTAINER) as container:
        await _ready(container)
        beside_container = footprint.resident(container, lxc, 0)
    began = time.perf_counter()
    with _bare(guest, lambda directory: _READY in (directory / "serial").read_text(errors="replace")):
        booted_by_hand = time.perf_counter() - began
    start, start_by_hand = statistics.median(ours), statistics.median(by_hand)
    return [
        *footprint.figures(seen, qemu),
        *footprint.figures(beside_container, lxc),
        Figure("launcher, resident", seen["launcher"] / 1024, "MiB", aim="< 40"),
        Figure(
            "launcher and libvirt daemon, resident",
            (seen["launcher"] + seen["daemon"]) / 1024,
            "MiB",
            aim="< 80",
            reference="240 MiB reserved by KubeVirt for these processes",
        ),
        Figure("launch to domain running", start, "s", start_by_hand, "QEMU by hand, to running"),
        Figure("launch to guest booted", booted, "s", booted_by_hand, "QEMU by hand, to booted"),
    ]


async def _ready(vm: Standalone) -> None:
    console = Path(f"{vm.console}-log")
    await asyncio.to_thread(_until, lambda: console.exists() and _READY in console.read_text(errors="replace"))


@asynccontextmanager
async def _launched(guest: guestimage.Guest, vmi: dict[str, Any] = _VMI) -> AsyncIterator[Standalone]:
    completed, _ = complete(vmi, Installation({}))
    completed["metadata"]["uid"] = str(uuid.uuid4())
    hypervisor = registry.get(completed["spec"].get("hypervisor", registry.DEFAULT))
    context = Context(emulated=bool(hypervisor.descriptor.device))
    cache = guestimage.default_cache() / "capabilities"
    sources = {volume["name"]: guest.image for volume in completed["spec"]["volumes"]}
    async with Standalone(completed, hypervisor, context, sources, cache=cache) as vm:
        await vm.start()
        yield vm


@contextmanager
def _bare(guest: guestimage.Guest, there: Callable[[Path], bool]) -> Iterator[None]:
    """QEMU with the same guest, started by hand, as soon as it is where we want it."""
    with tempfile.TemporaryDirectory(prefix="vf-bare-") as name:
        directory = Path(name)
        (directory / "serial").touch()
        disk = directory / "disk.qcow2"
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(guest.disk), str(disk)]
        subprocess.run(create, check=True)
        command = [
            *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", "128", "-nodefaults", "-display", "none"),
            *("-vga", "std", "-serial", f"file:{directory}/serial", "-qmp", f"unix:{directory}/qmp,server=on,wait=off"),
            *("-drive", f"if=none,id=root,file={disk}", "-device", "virtio-blk-pci,drive=root"),
            *("-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile="),
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            _until(lambda: there(directory))
            yield
        finally:
            process.kill()
            process.wait()


def _running(path: Path) -> bool:
    """Whether QEMU says of itself that it runs."""
    with socket.socket(socket.AF_UNIX) as monitor:
        try:
            monitor.connect(str(path))
        except OSError:
            return False
        stream = monitor.makefile("rw")
        stream.readline()
        for command in ("qmp_capabilities", "query-status"):
            stream.write(f'{{"execute": "{command}"}}\n')
            stream.flush()
            answer = stream.readline()
        return '"running": true' in answer


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("a guest did not get where it should")
        time.sleep(0.01)
