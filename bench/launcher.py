"""What one VM costs beside itself, and how long it takes to start, against QEMU started by hand in the same run."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.report import Figure
from virtfleet.admission.cluster import Cluster
from virtfleet.admission.review import complete
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.launcher.standalone import Standalone
from virtfleet.local import guestimage

TITLE = "launcher: memory and start of one VM"

_ROUNDS = 5
_DEADLINE = 120.0
_READY = "virtfleet-guest ready"
_MIB = 1024  # in KiB
_VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "domain": {
            "memory": {"guest": "128Mi"},
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": guestimage.IMAGE}}],
    },
}


async def run() -> list[Figure]:
    guest = guestimage.build(guestimage.default_cache())
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
        console = Path(f"{vm.console}-log")
        await asyncio.to_thread(_until, lambda: console.exists() and _READY in console.read_text(errors="replace"))
        booted = time.perf_counter() - began
        resident = _resident(vm)
    began = time.perf_counter()
    with _bare(guest, lambda directory: _READY in (directory / "serial").read_text(errors="replace")):
        booted_by_hand = time.perf_counter() - began
    start, start_by_hand = statistics.median(ours), statistics.median(by_hand)
    reserved = "240 MiB reserved by KubeVirt for these processes"
    both = resident["launcher"] + resident["daemon"]
    planned = registry.get("qemu-kvm").descriptor.overheads
    return [
        Figure("launcher, resident", resident["launcher"] / _MIB, "MiB", aim=f"< 40, planned {planned.launcher}"),
        Figure("libvirt daemon, resident", resident["daemon"] / _MIB, "MiB", aim=f"planned {planned.daemon}"),
        Figure("log daemon, resident", resident["log"] / _MIB, "MiB", aim=f"planned {planned.log_daemon}"),
        Figure("launcher and libvirt daemon, resident", both / _MIB, "MiB", aim="< 80", reference=reserved),
        Figure("launch to domain running", start, "s", start_by_hand, "QEMU by hand, to running"),
        Figure("launch to guest booted", booted, "s", booted_by_hand, "QEMU by hand, to booted"),
    ]


@asynccontextmanager
async def _launched(guest: guestimage.Guest) -> AsyncIterator[Standalone]:
    vmi, _ = complete(_VMI, Cluster({}))
    vmi["metadata"]["uid"] = str(uuid.uuid4())
    capabilities = guestimage.default_cache() / "capabilities"
    hypervisor, context = registry.get("qemu-kvm"), Context(emulated=True)
    async with Standalone(vmi, hypervisor, context, {"root": guest.image}, cache=capabilities) as vm:
        await vm.start()
        yield vm


def _resident(vm: Standalone) -> dict[str, int]:
    """Memory by role, in KiB, of the processes in the sandbox."""
    process = vm.sandbox.process
    assert process is not None
    first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    found = {"launcher": 0, "daemon": 0, "log": 0}
    roles = {"virtfleet.launcher": "launcher", "libvirtd": "daemon", "virtqemud": "daemon", "virtlogd": "log"}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns/pid") != namespace:
                continue
            words = (entry / "cmdline").read_text().split("\0")
            for name, role in roles.items():
                if name in words or os.path.basename(words[0]) == name:
                    found[role] += int((entry / "status").read_text().partition("VmRSS:")[2].split()[0])
        except OSError:
            continue
    return found


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
