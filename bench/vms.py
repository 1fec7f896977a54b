"""What VMs cost on a local cluster: the time until they run and until their guests are up, calls, memory, CPU.

Everything is real: the operator installs, guests boot, and are emulated where KVM does not work. The references are
KubeVirt's on a machine of the same kind, with a guest of the same size.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from bench import processes
from bench.node import cluster
from bench.processes import Process
from bench.report import Figure
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS, VMIS, Obj

TITLE = "VMs on a local cluster of two nodes"

ONE_BY_ONE, TOGETHER, MOST = 5, 10, 20
REST = 60.0
DEADLINE = 600.0
NAMESPACE = "default"
COMPONENTS = {
    "gateway": "virt-api",
    "controller": "virt-controller",
    "handler": "virt-handler",
    "operator": "virt-operator",
}
_RSS = {"gateway": 178, "controller": 75, "handler": 77, "operator": 230}
Calls = Counter[tuple[str, str]]  # by verb and resource


def vmi(name: str) -> Obj:
    """The guest of examples/vmi.yaml."""
    devices = {
        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
        "interfaces": [{"name": "default", "masquerade": {}}],
    }
    image = {"image": "virtfleet/guest:demo", "imagePullPolicy": "IfNotPresent"}
    return {
        "apiVersion": VMIS.api_version,
        "kind": VMIS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "domain": {"memory": {"guest": "128Mi"}, "devices": devices},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": image}],
        },
    }


class Watched:
    """When each VMI was seen to run, and its guest to be up."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self.booted: dict[str, float] = {}
        self._there: set[str] = set()
        self._changed = asyncio.Condition()

    async def follow(self, api: Client, listening: asyncio.Event) -> None:
        async with api.watch(VMIS, NAMESPACE) as events:
            listening.set()
            async for event in events:
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    async with self._changed:
                        self._take(event.type, orjson.loads(event.object))
                        self._changed.notify_all()

    def _take(self, change: str, obj: Obj) -> None:
        name, status, now = obj["metadata"]["name"], obj.get("status") or {}, time.monotonic()
        if change == "DELETED":
            self._there.discard(name)
            return
        self._there.add(name)
        if status.get("phase") == "Running":
            self.running.setdefault(name, now)
        if any(c["type"] == "AgentConnected" for c in status.get("conditions") or ()):
            self.booted.setdefault(name, now)

    async def until_running(self, names: Iterable[str]) -> list[float]:
        return await self._until(names, self.running)

    async def until_booted(self, names: Iterable[str]) -> list[float]:
        return await self._until(names, self.booted)

    async def until_gone(self) -> None:
        await self._wait(lambda: not self._there)

    async def _until(self, names: Iterable[str], seen: dict[str, float]) -> list[float]:
        await self._wait(lambda: all(name in seen for name in names))
        return sorted(seen[name] - self.created[name] for name in names)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(condition)


class Bench:
    """One cluster, and what is measured on it."""

    def __init__(self, data: Path, api: Client, watched: Watched) -> None:
        self._data = data
        self._api = api
        self._watched = watched
        self._number = 0

    async def create(self, count: int) -> list[str]:
        names = [f"vm{self._number + i}" for i in range(count)]
        self._number += count
        for name in names:
            self._watched.created[name] = time.monotonic()
            await self._api.create(VMIS, vmi(name))
        return names

    async def delete_all(self) -> float:
        began = time.monotonic()
        for obj in await self._api.list(VMIS, NAMESPACE):
            await self._api.delete(VMIS, obj["metadata"]["name"], NAMESPACE)
        await self._watched.until_gone()
        return time.monotonic() - began

    # Each measurement.

    async def at_rest(self, what: str, reference: bool) -> list[Figure]:
        """Calls and CPU while nothing happens, and the memory of the components."""
        calls, cpu = await self.calls(), processes.cpu_seconds(self._components())
        await asyncio.sleep(REST)
        more = await self.calls() - calls
        used = processes.cpu_seconds(self._components()) - cpu
        found = defaultdict(list)
        for process in self._components():
            found[process.program].append(processes.resident([process]))
        figures = [
            Figure(
                f"{name}: memory of one, {what}",
                statistics.mean(found[program]),
                "MiB RSS",
                reference=str(_RSS[program]),
            )
            for program, name in COMPONENTS.items()
        ]
        everything = [value for values in found.values() for value in values]
        return [
            *figures,
            Figure(
                f"{len(everything)} components together, {what}",
                sum(everything),
                "MiB RSS",
                reference="1,346 in twelve pods" if reference else "",
            ),
            Figure(
                f"calls of the components, {what}",
                more.total() * 60 / REST,
                "a minute",
                reference="313" if reference else "",
            ),
            Figure(
                f"CPU of the components, {what}", used / REST * 1000, "millicores", reference="48" if reference else ""
            ),
        ]

    async def one_by_one(self) -> list[Figure]:
        running, booted, gone = [], [], []
        calls: Calls = Counter()
        await self._a_first_one()
        for _ in range(ONE_BY_ONE):
            before = await self.calls()
            names = await self.create(1)
            running += await self._watched.until_running(names)
            await asyncio.sleep(0.5)  # for the last events to be written
            calls += await self.calls() - before
            booted += await self._watched.until_booted(names)
            gone.append(await self.delete_all())
        per_vmi = {key: count / ONE_BY_ONE for key, count in sorted(calls.items()) if key[1] not in _PERIODIC}
        return [
            Figure("one VMI, created to Running, median", statistics.median(running), "s", reference="3.75"),
            Figure("  guest up (agent connected), median", statistics.median(booted), "s"),
            Figure("  deleted to gone, median", statistics.median(gone), "s", reference="3.1 to 3.9"),
            Figure("calls per VMI until Running", sum(per_vmi.values()), "calls", reference="13"),
            *(
                Figure(f"  {verb} {resource}", count, "calls", reference=_CALLS.get((verb, resource), ""))
                for (verb, resource), count in per_vmi.items()
            ),
        ]

    async def _a_first_one(self) -> None:
        """The first VM of a node makes what the others share."""
        await self._watched.until_running(await self.create(4))
        await self.delete_all()

    async def together(self, count: int, reference: tuple[str, str] = ("", "")) -> list[Figure]:
        names = await self.create(count)
        running = await self._watched.until_running(names)
        booted = await self._watched.until_booted(names)
        return [
            Figure(
                f"{count} VMIs at once, created to Running p50", statistics.median(running), "s", reference=reference[0]
            ),
            Figure("  p95", percentile(running, 95), "s", reference=reference[1]),
            Figure("  guest up p50", statistics.median(booted), "s"),
            Figure("  p95", percentile(booted, 95), "s"),
        ]

    def beside_guests(self, count: int) -> list[Figure]:
        """What is in a launcher's Pod beside the hypervisor."""
        found = [p for p in processes.of_cluster(self._data) if p.pod in self._pods_of("launcher")]
        beside = [p for p in found if not p.program.startswith("qemu-system")]
        return [
            Figure("processes beside QEMU, per VM", processes.resident(beside) / count, "MiB RSS", reference="143"),
            Figure("  shared pages divided", processes.proportional(beside) / count, "MiB PSS", reference="53"),
        ]

    # Looking.

    def _components(self) -> list[Process]:
        return [p for p in processes.of_cluster(self._data) if p.program in COMPONENTS]

    def _pods_of(self, program: str) -> set[str]:
        return {p.pod for p in processes.of_cluster(self._data) if p.program == program}

    async def calls(self) -> Calls:
        """Calls of all components so far."""
        found: Calls = Counter()
        pods = await self._api.list(PODS, "kubevirt")
        async with aiohttp.ClientSession() as session:
            for pod in pods:
                async with session.get(f"https://{pod['status']['podIP']}:8443/metrics", ssl=False) as answer:
                    found += _requests(await answer.text())
        return found


# What is called now and then, with or without VMs: leases of elections, signs of life of nodes.
_PERIODIC = ("leases.coordination.k8s.io", "nodes")
# KubeVirt's calls per VMI until it runs, where its figures name them.
_CALLS = {
    ("patch", "virtualmachineinstances.kubevirt.io"): "6 updates and 1 patch",
    ("create", "pods"): "3 writes of the pod",
    ("create", "events"): "3",
}


def _requests(text: str) -> Calls:
    found: Calls = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "kubevirt_rest_client_requests_total":
                found[sample.labels["verb"], sample.labels["resource"]] += int(sample.value)
    return found


def percentile(values: list[float], percent: int) -> float:
    return values[math.ceil(len(values) * percent / 100) - 1]


@asynccontextmanager
async def prepared() -> AsyncIterator[Bench]:
    with cluster(["node-a", "node-b"], "--no-bare") as (data, _):
        async with Client(config.load(data / "kubeconfig")) as api:
            watched, listening = Watched(), asyncio.Event()
            following = asyncio.create_task(watched.follow(api, listening))
            await listening.wait()
            try:
                yield Bench(data, api, watched)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


async def run() -> list[Figure]:
    async with prepared() as bench:
        await asyncio.sleep(10)  # for the installation to come to rest
        figures = await bench.at_rest("no VM", reference=True)
        figures += await bench.one_by_one()
        figures += await bench.together(TOGETHER, ("19.5", "28.9"))
        await bench.delete_all()
        figures += await bench.together(MOST)
        figures += bench.beside_guests(MOST)
        figures += await bench.at_rest(f"{MOST} VMs", reference=False)
        await bench.delete_all()
    return figures
