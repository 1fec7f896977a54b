"""Guests that move between launchers, each in a sandbox; what their handlers would do is done by the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from virtfleet.api.migration import MigrationOptions
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.protocol import messages as m
from virtfleet.protocol.channels import Channel, Line, Packet
from virtfleet.protocol.client import LauncherGone, Refused
from virtfleet.work.tasks import held

QEMU = registry.get("qemu-kvm")
DAEMONS = ("virtqemud", "libvirtd")
# A boot sector that counts: it reads its last count from the disk, says "!" where that is another one, writes the next
# to the disk and as a line of eight digits to the serial port, and waits two milliseconds.
COUNTS = bytes.fromhex(
    "fa31c08ed88ec08ed0bc007cfb66a300708816107066c70600700000000066c70600711000010066c70604710072000066c7060871010000"
    "0066c7060c710000000066833e007000741eb4428a161070be0071cd13720b66a10072663b0600707406b021baf803ee66ff06007066a100"
    "7066a30072b44330c08a161070be0071cd1366a10070b90800baf80366c1c00488c380e30f80c33080fb3a720380c32786d8ee86d8e2e5b0"
    "0aeeb48631c9bad007cd15e968ff"
)
# The same, and it waits for 65 milliseconds: many such guests leave the machine to others.
SLOWLY = COUNTS.replace(bytes.fromhex("bad007"), bytes.fromhex("baffff"))

# The same without a disk: before each count it writes that to 112 pages of its memory, and says "!" where what it wrote
# the last time is not there any more. It asks nothing of its firmware and never waits, so that its CPU has no reason to
# forget which pages it may write to.
REMEMBERS = bytes.fromhex(
    "fa31c08ed88ed0bc007c6631edb80020b970008ec06685ed74102666392e0000740850b021baf803ee5866452666892e0000664d050001e2"
    "da66456689e8b90800baf80366c1c00488c380e30f80c33080fb3a720380c32786c3ee86c3e2e5b00aee66b9e0930400664975fceb9f"
)


def image(path: Path, sector: bytes = COUNTS) -> Path:
    path.write_bytes((sector.ljust(510, b"\0") + b"\x55\xaa").ljust(1 << 20, b"\0"))
    return path


def counting(**more: object) -> dict[str, Any]:
    """A VMI whose guest counts."""
    devices = {
        "autoattachGraphicsDevice": False,
        "disks": [{"name": "root", "disk": {"bus": "virtio"}}, {"name": "data", "disk": {"bus": "virtio"}}],
        "interfaces": [{"name": "default", "masquerade": {}}],
        **more,
    }
    return {
        "metadata": {"name": "mover", "namespace": "test", "uid": str(uuid4())},
        "spec": {
            "architecture": "amd64",
            "domain": {"machine": {"type": "q35"}, "memory": {"guest": "64Mi"}, "devices": devices},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "x"}},
                {"name": "data", "emptyDisk": {"capacity": "8Mi"}},
            ],
        },
    }


class Place(Standalone):
    """A Pod that the guest runs in, or comes to."""

    def __init__(self, vmi: dict[str, Any], disk: Path, cache: Path) -> None:
        super().__init__(vmi, QEMU, Context(emulated=True), {"root": disk}, cache=cache)
        self.latest = m.DomainState()
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await super().open()
        self._following = held(self._follow(), "follow")

    async def _follow(self) -> None:
        async for update in self.client.watch():
            self.latest = update.state

    def report(self, uid: str) -> m.MigrationReport:
        """What the launcher has said of a migration."""
        report = self.latest.migration
        return report if report and report.uid == uid else m.MigrationReport()

    @property
    def said(self) -> str:
        try:
            return Path(f"{self.console}-log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def processes(self, *names: str) -> list[int]:
        """Processes of the Pod by the beginnings of their names.

        By their namespace: the kernel's list of a process's children may lack some while others end.
        """
        assert self.sandbox.process is not None
        try:
            namespace = os.readlink(f"/proc/{self.sandbox.process.pid}/ns/pid_for_children")
        except FileNotFoundError:  # all of it has ended
            return []
        inside = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                named = Path(f"/proc/{pid}/comm").read_text().startswith(names)
                if named and os.readlink(f"/proc/{pid}/ns/pid") == namespace and _alive(int(pid)):
                    inside.append(int(pid))
        return inside

    def kill(self, *names: str) -> None:
        for pid in self.processes(*names):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


class Move:
    """One migration, as its two handlers carry it out. `mute`: what the target says at the end is lost on the way.

    `slow`: the first of its memory, and what it writes meanwhile, go through at 16 KiB in this many seconds.
    """

    def __init__(self, source: Place, target: Place, *, mute: bool = False, slow: float = 0) -> None:
        self.uid = str(uuid4())
        self.source, self.target = source, target
        self._tasks: set[asyncio.Task[None]] = set()
        self._mute = mute
        self._sent = asyncio.Event()  # all of the guest's memory
        self._ends: dict[Channel, list[asyncio.StreamWriter]] = {channel: [] for channel in Channel}
        self._slow = slow
        (pid,) = source.processes("qemu-system")
        self._process = os.pidfd_open(pid)

    @property
    def source_lives(self) -> bool:
        return not select.select([self._process], [], [], 0)[0]

    async def begin(self, options: MigrationOptions) -> None:
        await prepare(self.target, self.uid)
        document = await self.target.client.call(m.GetDocument())
        await self._connect()
        await self.source.client.call(
            m.Depart(
                migration=self.uid,
                vmi=msgspec.json.encode(self.source.vmi),
                document=document.xml,
                options=msgspec.json.encode(options),
            )
        )

    async def outcome(self, limit: float = 150) -> str:
        """`moved`, `stayed` or `lost`, when that is settled and carried out."""
        try:
            async with asyncio.timeout(limit):
                return await self._settled()
        except TimeoutError:
            sides = {"source": self.source, "target": self.target}
            told = [f"{name}: {side.latest}\n{side.log.read_text()[-8000:]}" for name, side in sides.items()]
            raise AssertionError("\n".join([f"not settled in {limit} s", *told])) from None

    async def _settled(self) -> str:
        while self.source_lives:
            if self.source.report(self.uid).asks:
                await self.source.client.call(m.Stay(migration=self.uid))
            if self.source.report(self.uid).failure:
                await self._drop()
                return "stayed"
            await asyncio.sleep(0.002)
        while self.target.processes("qemu-system"):
            if self.target.report(self.uid).complete and await self._arrive():
                return "moved"
            await asyncio.sleep(0.002)
        await self._drop()
        return "lost"

    async def _arrive(self) -> bool:
        try:
            state = await self.target.client.call(m.Arrive(migration=self.uid))
        except (LauncherGone, Refused):
            return False
        return state.status is m.Status.RUNNING

    async def _drop(self) -> None:
        with contextlib.suppress(LauncherGone, Refused):
            await self.target.client.call(m.Kill())
        assert self.target.sandbox.process is not None
        await self.target.sandbox.process.wait()

    async def close(self) -> None:
        os.close(self._process)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self) -> None:
        line = Line(_channels(self.source))
        await line.send(Packet(serve=list(Channel)))
        self._begin(self._relay(line))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, line: Line) -> None:
        try:
            while received := await line.receive():
                packet, connection = received
                assert packet.channel and connection
                self._begin(self._join(packet.channel, connection))
        finally:
            line.close()

    async def _join(self, channel: Channel, connection: socket.socket) -> None:
        line = Line(_channels(self.target))
        await line.send(Packet(dial=channel))
        received = await line.receive()
        line.close()
        if received is None or received[1] is None:
            return connection.close()
        ends = [await asyncio.open_unix_connection(sock=end) for end in (connection, received[1])]
        (here, back), (there, on) = ends
        self._ends[channel] += (on, back)
        slow = self._slow if channel is Channel.MEMORY else 0
        muted = self._sent if self._mute and channel is Channel.LIBVIRT else None
        done = self._sent if channel is Channel.MEMORY else None
        await asyncio.gather(
            _pump(here, on, done=done, slow=slow), _pump(there, back, muted=muted), return_exceptions=True
        )

    def cut(self, channel: Channel = Channel.LIBVIRT) -> None:
        """Break the connections between the daemons, or others."""
        for writer in self._ends[channel]:
            writer.transport.abort()
        self._slow = 0


_SLOWED = 3 << 20  # bytes: several times what a guest here has in its memory


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    muted: asyncio.Event | None = None,
    done: asyncio.Event | None = None,
    slow: float = 0,
) -> None:
    """Bytes from one end to the other until the first ends, which is `done`; lost from when it is `muted`."""
    try:
        passed = 0
        while data := await reader.read(1 << 14 if slow else 1 << 18):
            await asyncio.sleep(slow)
            passed += len(data)
            slow = slow if passed < _SLOWED else 0
            if muted and muted.is_set():
                continue
            writer.write(data)
            await writer.drain()
    finally:
        if done:
            done.set()
        writer.close()


def _channels(place: Place) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(place.sandbox.path(m.CHANNELS_SOCKET)))
    return connection


async def prepare(place: Place, uid: str) -> None:
    order = place.order()
    await place.client.call(m.Prepare(vmi=order.vmi, node=order.node, emulators=order.emulators, migration=uid))


class Listener:
    """Notes when a guest is first and last heard at a place."""

    def __init__(self, place: Place) -> None:
        self.first = self.last = 0.0
        self._place = place

    async def run(self) -> None:
        log, size = f"{self._place.console}-log", 0
        while True:
            with contextlib.suppress(OSError):
                now = os.stat(log).st_size
                if now != size:
                    self.last = time.monotonic()
                    self.first = self.first or self.last
                    size = now
            await asyncio.sleep(0.002)


def counted(*places: str) -> list[int]:
    """The counts of what was said at one place after the other; what begins at one may end at the next."""
    text = "".join(places)
    assert "!" not in text, "the disk did not hold what the guest had written"
    return [int(line, 16) for line in text[text.find("00000001") :].splitlines()[:-1] if line]
