"""Live migration on a local cluster: from the object to its end, the guest's pause, many in a row, many at once.

The baseline of each figure is bare libvirt with the same guest in the same run. The pause is told by the guest: it
sends a packet with the time of its own clock every few milliseconds, before, on the way and after.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from bench.accounting import accounting
from bench.bare_libvirt import BareLibvirt
from bench.node import cluster, install
from bench.observer import Observed, has_condition, observing, percentile
from bench.report import Figure
from bench.vms import GUEST, NAMESPACE, vmi
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.resource import KUBEVIRTS, NODES, VMI_MIGRATIONS, VMIS, Obj
from virtfleet.local import guestimage

TITLE = "live migration, beside bare libvirt and KubeVirt's figures"

IN_A_ROW, AT_ONCE, BARE_ROUNDS = 20, 20, 5
DEADLINE = 600.0
STALL = 60.0  # seconds after which a migration counts as stalled
PHASES = ("Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded")
SIDE_BY_SIDE = 4  # of many at once; more of them only wait for each other on a machine of two cores
_TICK = 0.02
_WORTH_SAYING = 0.005  # seconds of CPU time for each move
_ECHO = 8
_CLOCK = 1 << 32  # the guest's microseconds come as 32 bits


class Ticks:
    """Packets of a guest, with the time of their arrival and that of the guest's clock, in seconds."""

    def __init__(self) -> None:
        self._heard: list[tuple[float, float]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setblocking(False)
        self._news = asyncio.Event()

    def hear(self) -> None:
        while True:
            try:
                packet = self._socket.recv(2048)
            except BlockingIOError:
                return
            body = packet[4 * (packet[0] & 15) :]
            if body[0] == _ECHO and len(body) == 64:
                self._heard.append((time.monotonic(), struct.unpack_from("<I", body, 8)[0] / 1e6))
                self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.count < count:
                self._news.clear()
                await self._news.wait()

    @property
    def count(self) -> int:
        return len(self._heard)

    def longest_gap(self, since: float) -> tuple[float, float]:
        """Since a time of ours: the longest without a packet here, and between two of them by the guest's clock."""
        heard = [tick for tick in self._heard if tick[0] >= since]
        here = max(after[0] - before[0] for before, after in pairwise(heard))
        own = max((after[1] - before[1]) % (_CLOCK / 1e6) for before, after in pairwise(heard))
        return here, own


@contextmanager
def ticks() -> Iterator[Ticks]:
    heard = Ticks()
    loop = asyncio.get_running_loop()
    loop.add_reader(heard._socket, heard.hear)
    try:
        yield heard
    finally:
        loop.remove_reader(heard._socket)
        heard._socket.close()


def near(network: str) -> str:
    """The address of this machine on a node's network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(ipaddress.ip_network(network)[10]), 9))
        return str(probe.getsockname()[0])


def ticking(name: str, host: str) -> Obj:
    """A VMI whose guest says all the time that it is there."""
    made = vmi(name, GUEST)
    data = f"#cloud-config\nruncmd:\n- ping -i {_TICK} -q {host} >/dev/null 2>&1 &\n"
    made["spec"]["domain"]["devices"]["disks"].append({"name": "seed", "disk": {"bus": "virtio"}})
    made["spec"]["volumes"].append({"name": "seed", "cloudInitNoCloud": {"userData": data}})
    return made


def migration(name: str, of: str) -> Obj:
    return {
        "apiVersion": VMI_MIGRATIONS.api_version,
        "kind": VMI_MIGRATIONS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"vmiName": of},
    }


class Bench:
    """A cluster of two nodes, its VMIs and its migrations."""

    def __init__(self, data: Path, api: Client, vmis: Observed, moves: Observed) -> None:
        self._data, self._api, self._vmis, self._moves = data, api, vmis, moves

    async def create(self, objects: list[Obj]) -> None:
        for wanted in objects:
            await self._api.create(VMIS, wanted)
        await self._vmis.until("booted", [o["metadata"]["name"] for o in objects])

    async def delete(self, names: list[str]) -> None:
        for name in names:
            await self._api.delete(VMIS, name, NAMESPACE)
        await self._vmis.until_gone(names)

    async def move(self, name: str, of: str) -> dict[str, float] | None:
        """Seconds from the object's creation to each phase; None where it stalls."""
        began = time.monotonic()
        await self._api.create(VMI_MIGRATIONS, migration(name, of))
        try:
            async with asyncio.timeout(STALL):
                [ended] = await self._moves.until("ended", [name])
        except TimeoutError:
            print(f"  {name} has stalled: {await self._api.get(VMI_MIGRATIONS, name, NAMESPACE)}", file=sys.stderr)
            return None
        seen = {phase: self._moves.seen[phase].get(name, ended) - began for phase in PHASES}
        if name not in self._moves.seen["Succeeded"]:
            print(f"  {name} has failed: {await self._api.get(VMI_MIGRATIONS, name, NAMESPACE)}", file=sys.stderr)
            return None
        await self._moves.until("settled", [name])
        return seen

    async def in_a_row(self, count: int) -> tuple[list[dict[str, float]], list[float], list[float], int]:
        """Times of each, pauses as heard here and by the guest's clock, and how many stalled or failed."""
        node = next(iter(await self._api.list(NODES)))
        took, heard, own = [], [], []
        with ticks() as tick:
            await self.create([ticking("row", near(node["spec"]["podCIDR"]))])
            await tick.until(1)
            for number in range(count + 1):
                before, began = tick.count, time.monotonic()
                times = await self.move(f"row-{number}", "row")
                await tick.until(before + 50)
                print(f"  {number} of {count}: {times}", file=sys.stderr, flush=True)
                if number and times:  # the first one makes what the others share
                    took.append(times)
                    gaps = tick.longest_gap(began)
                    heard.append(gaps[0])
                    own.append(gaps[1])
        await self.delete(["row"])
        return took, heard, own, count - len(took)

    async def at_once(self, names: list[str]) -> tuple[float, dict[str, float]]:
        """Seconds until all of them, which ran on one node, run on the other; those of CPU time by program."""
        node = min(node["metadata"]["name"] for node in await self._api.list(NODES))
        wanted = [vmi(name, GUEST) for name in names]
        for one in wanted:
            one["spec"]["affinity"] = {"nodeAffinity": _preferring(node)}
        await self.create(wanted)
        limits = {"parallelMigrationsPerCluster": len(names), "parallelOutboundMigrationsPerNode": SIDE_BY_SIDE}
        await self._api.patch(KUBEVIRTS, "kubevirt", {"spec": {"configuration": {"migrations": limits}}}, "kubevirt")
        moves = [f"off-{name}" for name in names]
        async with accounting(self._data) as spent:
            began = time.monotonic()
            for move, name in zip(moves, names, strict=True):
                await self._api.create(VMI_MIGRATIONS, migration(move, name))
            ended = await self._moves.until("Succeeded", moves)
        await self.delete(names)
        return max(ended) - began, spent


def _preferring(node: str) -> Obj:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}


def _phase(name: str) -> Callable[[Obj], bool]:
    return lambda obj: (obj.get("status") or {}).get("phase") == name


async def _bare(names: list[str]) -> tuple[list[float], list[int], float, float]:
    """Seconds and pauses of one guest's moves, and seconds of all guests' at once, also of CPU time."""
    with BareLibvirt(vmi("bare", GUEST), guestimage.build(guestimage.default_cache()).disk) as bare:
        await bare.start(["one"])
        moves = [await bare.move(["one"]) for _ in range(BARE_ROUNDS + 1)][1:]
        together = spent = 0.0
        if names:
            await bare.start(names)
            before = bare.cpu_seconds()
            together, _ = await bare.move(names)
            spent = bare.cpu_seconds() - before
        return [seconds for seconds, _ in moves], [pauses[0] for _, pauses in moves], together, spent


async def run(moves: int = IN_A_ROW, vmis: int = AT_ONCE) -> list[Figure]:
    if os.geteuid() != 0:
        print("  nodes run real containers, which needs root: nothing is measured", file=sys.stderr)
        return []
    names = [f"vm-{number}" for number in range(vmis)]
    bare, bare_pauses, bare_together, bare_spent = await _bare(names)
    marks = {"booted": lambda vmi: has_condition(vmi, "AgentConnected")}
    phases = {phase: _phase(phase) for phase in PHASES}
    phases["ended"] = lambda move: phases["Succeeded"](move) or _phase("Failed")(move)
    phases["settled"] = lambda move: phases["ended"](move) and not move["metadata"].get("finalizers")
    with cluster(["node-a", "node-b"]) as (data, _):
        install(data)
        async with (
            Client(config.load(data / "kubeconfig")) as api,
            observing(api, VMIS, NAMESPACE, DEADLINE, **marks) as watched,
            observing(api, VMI_MIGRATIONS, NAMESPACE, DEADLINE, **phases) as moved,
        ):
            bench = Bench(data, api, watched, moved)
            took, heard, own, stalled = await bench.in_a_row(moves)
            together, spent = await bench.at_once(names) if names else (0.0, {})
    ended = [times["Succeeded"] for times in took]
    libvirt, libvirt_pause = statistics.median(bare), statistics.median(bare_pauses)
    pause = "bare libvirt's own word"
    figures = [
        Figure(
            *("object created to Succeeded, median", statistics.median(ended), "s"),
            *(libvirt, "bare libvirt", "at most 2.5", "3.6 to 4.2"),
        ),
        Figure("  p95", percentile(ended, 95), "s", percentile(bare, 95), "bare libvirt"),
        *(Figure(f"  to {phase}, median", statistics.median(t[phase] for t in took), "s") for phase in PHASES[:-1]),
        Figure(
            *("pause by the guest's clock, median", statistics.median(own) * 1000, "ms"),
            *(libvirt_pause, pause, "at most 200", "366 to 479"),
        ),
        Figure("  as heard from outside, median", statistics.median(heard) * 1000, "ms", libvirt_pause, pause),
        Figure("  as heard from outside, p95", percentile(heard, 95) * 1000, "ms"),
        Figure(f"of {moves} in a row, not Succeeded within {STALL:.0f} s", stalled, "", aim="0", reference="1 of 6"),
    ]
    if names:
        aim = "at most 1.5 times"
        title = f"{vmis} VMs at once off one node"
        figures.append(Figure(title, together, "s", bare_together, "bare libvirt", aim))
        each = sorted(((seconds / vmis, name) for name, seconds in spent.items()), reverse=True)
        whole, bare_each = sum(seconds for seconds, _ in each), bare_spent / vmis
        figures.append(Figure("  CPU time of each", whole, "s", bare_each, "bare libvirt and its guests"))
        figures += [Figure(f"    {name}", seconds, "s") for seconds, name in each if seconds >= _WORTH_SAYING]
    return figures
