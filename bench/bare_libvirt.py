"""Guests that move between two libvirt daemons of this machine, with nothing of VirtFleet between them.

What a migration costs anyway: the same guest, the same disk over the same image, libvirt's own peer-to-peer migration
through unix sockets, one daemon for all guests of a side.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4
from xml.etree.ElementTree import Element, tostring

import libvirt

from bench.processes import used
from tests.component.libvirt_daemon import GROUP, USER, running
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context, Host
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors import registry
from virtfleet.kube.resource import Obj

QEMU = registry.get("qemu-kvm")
_READY = "virtfleet-guest ready"
_BOOT = 600.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_FLAGS = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PEER2PEER
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
    | libvirt.VIR_MIGRATE_NON_SHARED_INC
)


class Side:
    """A node: one daemon, and its guests' disks."""

    def __init__(self, directory: Path, connection: libvirt.virConnect) -> None:
        self.files = directory / "private"
        self.connection = connection
        self.socket = connection.getURI().partition("socket=")[2]

    def make_disk(self, name: str, image: Path) -> Path:
        disk = self.files / f"{name}.qcow2"
        disk.unlink(missing_ok=True)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(image), str(disk)]
        subprocess.run(command, check=True)
        shutil.chown(disk, USER, GROUP)
        return disk


class BareLibvirt:
    """Two sides, and guests of a VMI's kind. Everything goes with the context."""

    def __init__(self, vmi: Obj, image: Path) -> None:
        self._vmi, self._image = vmi, image
        self._stack = ExitStack()
        self._domains: dict[str, Side] = {}
        self._guests: set[int] = set()
        self._ended = threading.Event()

    def __enter__(self) -> BareLibvirt:
        libvirt.registerErrorHandler(lambda *_: None, None)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self.sides = [self._side(), self._side()]
        threading.Thread(target=self._reap, daemon=True).start()
        return self

    def _side(self) -> Side:
        directory = Path(mkdtemp(prefix="vfb"))
        directory.chmod(0o755)
        daemon = running(QEMU, "qemu", directory, host_uuid=str(uuid4()))
        return Side(directory, self._stack.enter_context(daemon))

    def _reap(self) -> None:
        """libvirt waits for a guest's process until it is gone, which is up to whoever is the parent by then."""
        while not self._ended.wait(0.01):
            for side in self.sides:
                for file in (side.files.parent / "run").glob("libvirt/qemu/run/*.pid"):
                    with suppress(OSError, ValueError):
                        self._guests.add(int(file.read_text()))
            for pid in [*self._guests]:
                with suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0] == pid:
                        self._guests.discard(pid)

    def __exit__(self, *_: object) -> None:
        for name, side in self._domains.items():
            side.connection.lookupByName(name).destroy()
        self._stack.close()
        self._ended.set()

    def cpu_seconds(self) -> float:
        """CPU time of the daemons and of all guests so far."""
        children = [int(c) for path in Path("/proc/self/task").glob("*/children") for c in path.read_text().split()]
        return sum(used(os.getpid())[1:]) + sum(used(child)[0] for child in children)

    async def start(self, names: list[str]) -> None:
        """Guests on the first side, booted."""
        side = self.sides[0]
        for name in names:
            side.connection.createXML(tostring(self._document(name, side), encoding="unicode"))
            self._domains[name] = side
        await asyncio.to_thread(self._until_booted, names)

    def _until_booted(self, names: list[str]) -> None:
        end = time.monotonic() + _BOOT
        while not all(_READY in self._serial(name).read_text(errors="replace") for name in names):
            if time.monotonic() > end:
                raise TimeoutError("guests of bare libvirt do not boot")
            time.sleep(0.2)

    def _serial(self, name: str) -> Path:
        return self.sides[0].files / f"{name}.serial"

    def _document(self, name: str, side: Side) -> Element:
        context = Context(emulated=True, host=Host(libvirt_version=9_000_000))
        view = read(VirtualMachineInstance, {**self._vmi, "metadata": {"name": name, "namespace": "bare"}})
        domain = QEMU.adapt(QEMU.build(view, context), context)
        child(domain, "name").text = name
        devices = child(domain, "devices")
        for kind in ("interface", "serial", "console", "channel", "graphics"):
            for device in devices.findall(kind):
                devices.remove(device)
        serial = add(devices, "serial", type="file")
        add(serial, "source", path=str(self._serial(name)))
        for disk in devices.findall("disk"):
            child(disk, "source").set("file", str(side.make_disk(name, self._image)))
            child(disk, "driver").set("type", "qcow2")
            for lower in disk.findall("backingStore"):
                disk.remove(lower)
        return domain

    async def move(self, names: list[str]) -> tuple[float, list[int]]:
        """Move guests to the other side, all at once; seconds, and milliseconds that each stood still."""
        began = time.monotonic()
        pauses = await asyncio.gather(*(asyncio.to_thread(self._move, name) for name in names))
        return time.monotonic() - began, list(pauses)

    def _move(self, name: str) -> int:
        source = self._domains[name]
        target = next(side for side in self.sides if side is not source)
        disk = target.make_disk(name, self._image)
        document = source.connection.lookupByName(name).XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
        document = document.replace(str(source.files / disk.name), str(disk))
        parameters = {
            "migrate_uri": f"unix://{target.files}/{name}.memory",
            "disks_uri": f"unix://{target.files}/{name}.disks",
            "migrate_disks": ["vda"],
            "destination_xml": document,
            "persistent_xml": document,
        }
        connection = libvirt.open(source.connection.getURI())  # a call on a shared one would wait for the others
        try:
            uri = f"qemu+unix:///session?socket={target.socket}"
            connection.lookupByName(name).migrateToURI3(uri, parameters, _FLAGS)
        finally:
            connection.close()
        self._domains[name] = target
        done = target.connection.lookupByName(name).jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
        return int(done.get("downtime", 0))
