"""Volumes of a running VM: from the request until the guest sees the disk, many at once, and what their Pods hold."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from bench import processes
from bench.node import cluster, install
from bench.observer import has_condition, observing
from bench.report import Figure
from bench.vms import GUEST, NAMESPACE, vmi
from virtfleet.api import names
from virtfleet.api.subresources import VMI
from virtfleet.cli.vm.access import Reached
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, PODS, VMIS, Obj

TITLE = "volumes that are plugged into a running VM"

ONE_BY_ONE, TOGETHER = 5, 16
DEADLINE = 150.0  # seconds for anything that is waited for, also on a machine that is busy
AIM, MOST_MIB = 1.5, 2.0
# The guest says how many SCSI disks it has, whenever that changes and now and then without: its kernel, which is told
# to be quiet, writes to the same console, and most of all when a disk comes.
_COUNT = (
    "dmesg -n 1; o=; i=0; while :; do n=0; for d in /sys/block/sd*; do [ -e $d ] && n=$((n+1)); done;"
    ' [ "$n" = "$o" ] && [ $((i%50)) != 0 ] || echo "HAS"=$n=; o=$n; i=$((i+1)); usleep 20000; done\r'
)
_HAS = re.compile(rb"HAS=(\d+)=")


def _claim(name: str) -> Obj:
    resources = {"requests": {"storage": "16Mi"}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"], "resources": resources}}


class _Guest:
    """A guest that says on its console how many disks it has."""

    def __init__(self, console: aiohttp.ClientWebSocketResponse) -> None:
        self._console = console
        self._shown = b""
        self.disks = -1

    async def until(self, disks: int) -> float:
        """When it had so many."""
        await self._read(lambda: self.disks == disks, f"the guest to have {disks} SCSI disks")
        return time.monotonic()

    async def prompt(self) -> None:
        await self._console.send_bytes(b"\r")
        await self._read(lambda: b"guest# " in self._shown, "the guest's prompt")
        await self._console.send_bytes(_COUNT.encode())

    async def _read(self, enough: Callable[[], bool], what: str) -> None:
        """Read the console until it has said enough; one that ends, or says nothing in time, is an error."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not enough():
                    self._shown = (self._shown + await self._console.receive_bytes())[-4096:]
                    for found in _HAS.finditer(self._shown):
                        self.disks = int(found[1])
        except (TimeoutError, aiohttp.WSMessageTypeError) as error:
            shown = self._shown[-400:].decode(errors="replace")
            raise RuntimeError(f"waited for {what}; it has {self.disks}, and its console said {shown!r}") from error


@asynccontextmanager
async def _watched(vm: Reached) -> AsyncIterator[_Guest]:
    async with vm.stream("console") as console:
        guest = _Guest(console)
        await guest.prompt()
        await guest.until(0)
        yield guest


async def _plug(vm: Reached, name: str) -> None:
    disk, claim = {"disk": {"bus": "scsi"}, "serial": name}, {"claimName": name}
    await vm.put(VMI, "addvolume", {"name": name, "disk": disk, "volumeSource": {"persistentVolumeClaim": claim}})


async def run() -> list[Figure]:
    with cluster(["node-a"]) as (data, _):
        install(data)
        async with Client(config.load(data / "kubeconfig")) as api:
            figures = await _measure(api)
            pods = {p["metadata"]["uid"] for p in await api.list(PODS, NAMESPACE, labels=_LABEL)}
            held = [p for p in processes.of_cluster(data) if p.pod in pods]
            each = processes.resident(held) / len(pods)
            problem = f"more than {MOST_MIB} MiB" if each > MOST_MIB else ""
            figures.append(Figure("an attachment Pod, resident", each, "MiB", aim=f"≤ {MOST_MIB}", problem=problem))
            return figures


_LABEL = f"{names.APP_LABEL}={names.HOTPLUG_APP}"


async def _measure(api: Client) -> list[Figure]:
    vm = Reached(api, NAMESPACE, "bench")
    booted = {"booted": lambda seen: has_condition(seen, "AgentConnected")}
    async with observing(api, VMIS, NAMESPACE, DEADLINE, **booted) as watched:
        await api.create(VMIS, vmi(vm.name, GUEST))
        await watched.until("booted", [vm.name])
    claims = [f"claim-{i}" for i in range(TOGETHER)]
    for name in claims:
        await api.create(PERSISTENT_VOLUME_CLAIMS, _claim(name), NAMESPACE)
    async with _watched(vm) as guest:
        plugs, unplugs = [], []
        for _ in range(ONE_BY_ONE):
            began = time.monotonic()
            await _plug(vm, claims[0])
            plugs.append(await guest.until(1) - began)
            began = time.monotonic()
            await vm.put(VMI, "removevolume", {"name": claims[0]})
            unplugs.append(await guest.until(0) - began)
            await _gone(api)
        began = time.monotonic()
        for name in claims:
            await _plug(vm, name)
        together = await guest.until(TOGETHER) - began
    return [
        Figure("addvolume until the guest sees it, median", statistics.median(plugs), "s", aim=f"≤ {AIM}"),
        Figure("addvolume until the guest sees it, longest", max(plugs), "s"),
        Figure("removevolume until the guest has let go, median", statistics.median(unplugs), "s"),
        Figure(f"{TOGETHER} volumes, one after the other, until the guest sees all", together, "s"),
    ]


async def _gone(api: Client) -> None:
    """Until nothing is left of what was unplugged."""
    async with observing(api, VMIS, NAMESPACE, DEADLINE, settled=_settled) as watched:
        await watched.until("settled", ["bench"])


def _settled(seen: Obj) -> bool:
    return not any(s.get("hotplugVolume") is not None for s in seen["status"].get("volumeStatus") or ())
