"""Two libvirt daemons on one machine, and a real guest that moves between them by the steps of its hypervisor."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import Element, fromstring, tostring

import libvirt
import pytest

from tests.component.libvirt_daemon import GROUP, USER, running
from tests.waiting import eventually
from virtfleet.api.migration import ExperimentalMigrationOptions, MigrationOptions
from virtfleet.api.probes import Probe, TCPSocketAction
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context, Host
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.migration import Mode, Route
from virtfleet.hypervisors.qemu import migration
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd.connection import Connection
from virtfleet.launcher.libvirtd.migration import Departure, land, shown

pytestmark = pytest.mark.slow  # real guests

QEMU = registry.get("qemu-kvm")
NAME = "test_mover"
MIB = 1 << 20
_PIDFD_GETFD = 438  # a call of the kernel's that Python has no name for
# A firmware that goes to protected mode and then fills 16 MiB of memory with ever other words: it never comes to rest.
RESTLESS = bytes.fromhex(
    "fa2e660f011659000f20c00c010f22c066ea1800ffff080066b810008ed88ec0bf00000001b90000400040f3abebf1"
).ljust(0x41, b"\xf4") + bytes.fromhex("0000000000000000ffff0000009acf00ffff00000092cf0017004100ffff")

# The same, but a word in each page of these 4 MiB only, with a pause after it: some tens of MiB are
# new each second, and with a hundredth of its time, which is the least that a guest is left, far less than one.
BUSY = (
    RESTLESS[:0x20] + bytes.fromhex("bf00000001b90004000040890781c700100000ba803801004a75fde2eeebe1") + RESTLESS[0x3F:]
)

# The same 16 MiB, filled once: after that it only counts time.
FILLED = RESTLESS[:0x2D] + bytes.fromhex("ebfe") + RESTLESS[0x2F:]


def firmware(code: bytes) -> bytes:
    rom = bytearray(code.ljust(1 << 16, b"\xf4"))
    rom[0xFFF0:0xFFF3] = b"\xe9\x0d\x00"
    return bytes(rom)


EMPTY = {"emptyDisk": {"capacity": "8Mi"}}


def vmi(*, disks: bool = True, volume: dict[str, Any] = EMPTY, **devices: object) -> VirtualMachineInstance:
    """A guest with one disk that is only here."""
    plain = {"autoattachGraphicsDevice": False, "autoattachSerialConsole": False, "disableHotplug": True}
    disk = [{"name": "data", "disk": {"bus": "virtio"}}] if disks else []
    return read(
        VirtualMachineInstance,
        {
            "metadata": {"name": "mover", "namespace": "test", "uid": str(uuid4())},
            "spec": {
                "architecture": "amd64",
                "domain": {"memory": {"guest": "64Mi"}, "devices": {**plain, "disks": disk, **devices}},
                "volumes": [{"name": "data", **volume}] if disks else [],
            },
        },
    )


class Side:
    """One node: a daemon with a directory of its own, in which its disks lie."""

    def __init__(self, directory: Path, opened: libvirt.virConnect) -> None:
        self.directory = directory
        self.libvirt = opened
        self.disk = directory / "private" / "data.img"
        self.disk.write_bytes(b"")
        os.truncate(self.disk, 8 * MIB)
        shutil.chown(self.disk, USER, GROUP)
        self.code = RESTLESS

    def document(self, wanted: VirtualMachineInstance) -> Element:
        """As a launcher would make it here, with this side's paths."""
        context = Context(emulated=True, host=Host(libvirt_version=9_000_000))
        domain = QEMU.adapt(QEMU.build(wanted, context), context)
        rom = self.directory / "private" / "rom"
        rom.write_bytes(firmware(self.code))
        add(child(domain, "os"), "loader", str(rom), readonly="yes", type="rom")
        for disk in domain.iterfind("devices/disk"):
            child(disk, "driver").set("type", "raw")
            child(disk, "source").set("file", str(self.disk))
        return domain

    def active(self) -> bool:
        return any(
            domain.name() == NAME for domain in self.libvirt.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        )

    def cpu_time(self) -> int:
        return int(self.libvirt.lookupByName(NAME).info()[4])


class Pair:
    """Where a guest comes from, and where it goes."""

    def __init__(self, source: Side, target: Side) -> None:
        self.source, self.target = source, target
        self.wanted = vmi()
        daemon = target.libvirt.getURI().partition("socket=")[2]
        sockets = target.directory / "private"
        self.route = Route(libvirt=daemon, memory=str(sockets / "memory"), disks=str(sockets / "disks"))
        self.connections = [Connection(side.libvirt.getURI(), lambda _: None) for side in (source, target)]

    def begin(self, code: bytes = RESTLESS) -> Departure:
        source = self.source
        self.source.code = self.target.code = code
        source.libvirt.defineXML(tostring(source.document(self.wanted), encoding="unicode")).create()
        eventually(lambda: source.cpu_time() > 0)
        return Departure(self.connections[0], NAME, QEMU, self.wanted)

    def sides(self) -> tuple[bool, bool]:
        return self.source.active(), self.target.active()


@pytest.fixture(autouse=True)
def running_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guests run while their memory goes, as those whose CPUs are not emulated do; `test_moves.py` has the others."""
    monkeypatch.setattr(migration, "_TELLS_ALL", 0)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    libvirt.registerErrorHandler(lambda *_: None, None)
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            directory = Path(mkdtemp(prefix="vfm"))
            directory.chmod(0o755)
            opened = stack.enter_context(running(QEMU, "qemu", directory, host_uuid=str(uuid4())))
            made.append(Side(directory, opened))
        yield made[0], made[1]


@pytest.fixture
async def pair(sides: tuple[Side, Side]) -> AsyncIterator[Pair]:
    made = Pair(*sides)
    for connection in made.connections:
        connection.start()
    yield made
    for side in sides:
        for domain in side.libvirt.listAllDomains():
            if domain.isActive():
                domain.destroy()
            domain.undefine()
    for connection in made.connections:
        await connection.stop()


async def until_it_moves(moving: asyncio.Task[None], source: Side) -> None:
    domain = source.libvirt.lookupByName(NAME)
    await asyncio.to_thread(eventually, lambda: moving.done() or domain.jobStats().get("data_processed"))
    assert not moving.done(), moving.exception()


async def test_a_guest_moves_with_its_disk_and_runs_on_one_side_only(pair: Pair) -> None:
    pair.source.disk.write_bytes(os.urandom(8 * MIB))
    departure = pair.begin()
    options = MigrationOptions(
        allow_auto_converge=True, allow_workload_disruption=True, completion_timeout_per_gi_b=8, max_downtime_ms=400
    )
    await departure.run(pair.target.document(pair.wanted), pair.route, options)
    assert pair.sides() == (False, True)
    assert await shown(pair.connections[1], NAME, QEMU.migration.finish(source=False))
    domain = pair.target.libvirt.lookupByName(NAME)
    assert domain.state() == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER], "it waits to be let run"
    for _ in range(2):
        land(domain)
    assert domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    before = pair.target.cpu_time()
    eventually(lambda: pair.target.cpu_time() > before)
    assert pair.target.disk.read_bytes() == pair.source.disk.read_bytes(), "the disk went along"
    assert str(pair.target.disk) in pair.target.libvirt.lookupByName(NAME).XMLDesc()
    assert pair.target.libvirt.lookupByName(NAME).isPersistent(), "it outlives a restart of the daemon there"


async def test_a_claim_goes_to_another_and_larger_one_and_the_guest_sees_as_much_of_it_as_before(pair: Pair) -> None:
    of = read(VirtualMachineInstance, {"status": {"migratedVolumes": [{"volumeName": "data"}]}}).status
    pair.wanted = vmi(volume={"persistentVolumeClaim": {"claimName": "new"}})
    departure = pair.begin()
    with pytest.raises(Failure, match="Unable to determine if PVC new is shared"):
        await departure.run(pair.target.document(pair.wanted), pair.route, MigrationOptions())
    pair.wanted.status.migrated_volumes = of.migrated_volumes
    pair.source.disk.write_bytes(os.urandom(8 * MIB))
    os.truncate(pair.target.disk, 24 * MIB)
    await departure.run(pair.target.document(pair.wanted), pair.route, MigrationOptions())
    land(pair.target.libvirt.lookupByName(NAME))
    assert pair.target.disk.read_bytes() == pair.source.disk.read_bytes().ljust(24 * MIB, b"\0")
    assert pair.target.libvirt.lookupByName(NAME).blockInfo("vda")[0] == 8 * MIB
    # The next move leaves it where it is: what the guest knows of it goes along.
    pair.wanted.status.migrated_volumes = []
    kept = QEMU.migration.destination(
        fromstring(pair.target.libvirt.lookupByName(NAME).XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)),
        pair.source.document(pair.wanted),
    )
    assert [part.get("size") for part in kept.iter("slice")] == [str(8 * MIB)]
    os.truncate(pair.target.disk, 8 * MIB)


@pytest.mark.parametrize("post_copy", [False, True], ids=["pre-copy", "post-copy allowed"])
async def test_a_guest_that_its_owner_has_paused_stays_so(pair: Pair, post_copy: bool) -> None:
    """There is nothing to fetch of one that writes nothing: also where it might, which libvirt would refuse."""
    departure = pair.begin()
    pair.source.libvirt.lookupByName(NAME).suspend()
    options = MigrationOptions(allow_post_copy=post_copy, allow_workload_disruption=True)
    await departure.run(pair.target.document(pair.wanted), pair.route, options)
    domain = pair.target.libvirt.lookupByName(NAME)
    land(domain)
    assert domain.state() == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]


@pytest.mark.parametrize("how", ["undisturbed", "paused first", "probed"])
async def test_a_migration_that_takes_too_long_is_ended_and_the_guest_runs_on(pair: Pair, how: str) -> None:
    """One that the kubelet would end for its silence is not made to stand still, nor half on another node."""
    disruptive = how == "paused first"
    if how == "probed":
        pair.wanted.spec.liveness_probe = Probe(tcp_socket=TCPSocketAction(port=80))
    departure = pair.begin()
    options = MigrationOptions(
        bandwidth_per_migration="1Mi",
        completion_timeout_per_gi_b=1,
        allow_workload_disruption=how != "undisturbed",
        allow_post_copy=how == "probed",
    )
    with pytest.raises(Failure, match=r"it has not ended after \d+ s"):
        await departure.run(pair.target.document(pair.wanted), pair.route, options)
    assert departure.look.mode is (Mode.PAUSED if disruptive else Mode.PRE_COPY)
    assert pair.sides() == (True, False)
    assert pair.source.libvirt.lookupByName(NAME).state()[0] == libvirt.VIR_DOMAIN_RUNNING


async def test_a_target_that_dies_on_the_way_leaves_the_guest_where_it_was(pair: Pair) -> None:
    departure = pair.begin()
    slowly = MigrationOptions(bandwidth_per_migration="1Mi")
    moving = asyncio.create_task(departure.run(pair.target.document(pair.wanted), pair.route, slowly))
    await until_it_moves(moving, pair.source)
    os.kill(int((pair.target.directory / "run/libvirt/qemu/run" / f"{NAME}.pid").read_text()), signal.SIGKILL)
    with pytest.raises(Failure, match="has not moved"):
        await moving
    assert pair.sides() == (True, False)
    assert pair.source.libvirt.lookupByName(NAME).state()[0] == libvirt.VIR_DOMAIN_RUNNING


async def test_what_may_not_move_is_refused_before_anything_happens(pair: Pair) -> None:
    pair.begin()
    bound = vmi(hostDevices=[{"name": "d", "deviceName": "x/y"}])
    departure = Departure(pair.connections[0], NAME, QEMU, bound)
    with pytest.raises(Failure, match="cannot move: VMI specifies non-migratable generic PCI host device"):
        await departure.run(pair.target.document(pair.wanted), pair.route, MigrationOptions())
    elsewhere = Departure(pair.connections[0], NAME, registry.get("lxc"), pair.wanted)
    with pytest.raises(Failure, match="its hypervisor has no steps for a migration"):
        await elsewhere.run(pair.target.document(pair.wanted), pair.route, MigrationOptions())
    assert pair.sides() == (True, False)


async def test_a_target_that_is_not_prepared_for_the_vm_is_refused(pair: Pair) -> None:
    departure = pair.begin()
    other = pair.target.document(pair.wanted)
    child(other, "devices").remove(child(child(other, "devices"), "disk"))
    with pytest.raises(Failure, match="the target has no disk 'data'"):
        await departure.run(other, pair.route, MigrationOptions())
    nonsense = MigrationOptions(experimental=ExperimentalMigrationOptions(compression="fast"))
    with pytest.raises(Failure, match="has not moved"):
        await departure.run(pair.target.document(pair.wanted), pair.route, nonsense)
    assert pair.sides() == (True, False)


async def test_a_guest_that_writes_faster_than_the_link_is_slowed_down_until_it_fits(pair: Pair) -> None:
    pair.wanted = vmi(disks=False)
    departure = pair.begin(BUSY)
    throttled: list[int] = []
    departure._say = lambda: throttled.append(departure.look.throttle)
    options = MigrationOptions(allow_auto_converge=True, bandwidth_per_migration="6Mi")
    await departure.run(pair.target.document(pair.wanted), pair.route, options)
    assert max(throttled) >= 20, throttled
    land(pair.target.libvirt.lookupByName(NAME))
    before = pair.target.cpu_time()
    eventually(lambda: pair.target.cpu_time() > before)


async def test_one_that_comes_no_further_ends_with_what_holds_it_up_and_the_link_is_not_overrun(pair: Pair) -> None:
    pair.wanted = vmi(disks=False)
    departure = pair.begin()
    options = MigrationOptions(bandwidth_per_migration="4Mi", progress_timeout=10)
    moving = asyncio.create_task(departure.run(pair.target.document(pair.wanted), pair.route, options))
    domain, sent = pair.source.libvirt.lookupByName(NAME), []
    while not moving.done():
        job = domain.jobStats()
        if job.get("memory_processed", 0) > 4 * MIB:  # by then buffers on the way are full
            sent.append((job["time_elapsed"], job["memory_processed"]))
        await asyncio.sleep(0.1)
    told = (
        r"its migration has been aborted: it has made no progress for \d+ s: the guest writes [\d.]+ MiB of its memory"
        r" a second anew, and [\d.]+ MiB a second are sent; allow more bandwidth, auto-converge or post-copy"
    )
    with pytest.raises(Failure, match=told):
        await moving
    (began, first), (ended, last) = sent[0], sent[-1]
    assert ended - began > 2000 and 0 < (last - first) / (ended - began) * 1000 < 1.25 * 4 * MIB
    assert pair.sides() == (True, False)


@pytest.mark.usefixtures("user_faults")
async def test_one_that_never_fits_runs_on_the_target_before_all_of_it_is_there(pair: Pair) -> None:
    departure = pair.begin()
    pair.source.disk.write_bytes(os.urandom(8 * MIB))
    options = MigrationOptions(
        bandwidth_per_migration="4Mi",
        allow_post_copy=True,
        allow_workload_disruption=True,
        completion_timeout_per_gi_b=4,
    )
    await departure.run(pair.target.document(pair.wanted), pair.route, options)
    assert departure.look.mode is Mode.POST_COPY and departure.look.elapsed > 4
    assert pair.sides() == (False, True)
    assert await shown(pair.connections[1], NAME, QEMU.migration.finish(source=False))
    assert pair.target.disk.read_bytes() == pair.source.disk.read_bytes()
    domain, before = pair.target.libvirt.lookupByName(NAME), pair.target.cpu_time()
    assert domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    land(domain)
    eventually(lambda: pair.target.cpu_time() > before)


def cut(side: Side, path: str) -> None:
    """Break the connection over which memory comes to a side."""
    pid = int((side.directory / f"run/libvirt/qemu/run/{NAME}.pid").read_text())
    process = os.pidfd_open(pid)
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(entry).startswith("socket:"):
            fd = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, int(entry.name), 0)
            with socket.socket(fileno=fd) as end, suppress(OSError):  # one that only listens has no other end
                if end.getsockname() == path:
                    end.shutdown(socket.SHUT_RDWR)
    os.close(process)


@pytest.mark.usefixtures("user_faults")
async def test_a_post_copy_whose_link_breaks_is_taken_up_again_and_the_guest_goes_on(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.wanted = vmi(disks=False)
    departure = pair.begin(FILLED)
    options = MigrationOptions(
        bandwidth_per_migration="1Mi",
        allow_post_copy=True,
        allow_workload_disruption=True,
        completion_timeout_per_gi_b=2,
    )
    moving = asyncio.create_task(departure.run(pair.target.document(pair.wanted), pair.route, options))
    runs_there = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY]

    def halved() -> bool:
        return pair.target.active() and pair.target.libvirt.lookupByName(NAME).state() == runs_there

    await asyncio.to_thread(eventually, lambda: halved() or moving.done(), 60)
    cut(pair.target, pair.route.memory)
    async with asyncio.timeout(120):
        await moving
    assert "post-copy broke and is taken up again" in caplog.text
    assert pair.sides() == (False, True)
    assert await shown(pair.connections[1], NAME, QEMU.migration.finish(source=False))
    domain, before = pair.target.libvirt.lookupByName(NAME), pair.target.cpu_time()
    assert domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    eventually(lambda: pair.target.cpu_time() > before)


@pytest.mark.parametrize("stage", ["disks", "memory", "paused"])
async def test_it_can_be_aborted_in_each_stage(pair: Pair, stage: str) -> None:
    pair.wanted = vmi(disks=stage == "disks")
    departure = pair.begin()
    pair.source.disk.write_bytes(os.urandom(8 * MIB))
    slowly = MigrationOptions(
        bandwidth_per_migration="1Mi", allow_workload_disruption=True, completion_timeout_per_gi_b=2
    )
    moving = asyncio.create_task(departure.run(pair.target.document(pair.wanted), pair.route, slowly))
    await until_it_moves(moving, pair.source)
    job = pair.source.libvirt.lookupByName(NAME).jobStats()
    if stage == "disks":
        assert job.get("disk_processed") and not job.get("memory_processed"), job
    elif stage == "paused":
        await asyncio.to_thread(eventually, lambda: departure.look.mode is Mode.PAUSED)
    await departure.abort()
    with pytest.raises(Failure, match="has not moved: its migration has been aborted"):
        await moving
    assert departure.aborted and pair.sides() == (True, False)
    before = pair.source.cpu_time()
    eventually(lambda: pair.source.cpu_time() > before)
