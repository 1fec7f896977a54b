"""Many VMIs on many nodes: whether the thousandth and the ten-thousandth cost the same as the first.

API server and virt-controller are real, each in a process of its own; kubelets and handlers of a thousand nodes pretend
(simulator.py), from this process and over HTTPS like everybody. They give the signs of life of a thousand nodes. VMIs
come at a steady pace, whether those before them run or not, so that who cannot keep up shows it. One thing is not as
with a thousand nodes: all handlers share one watch of VMIs. Times depend on what else the machine does, so that is told
too.

Another cluster may be given, without VirtFleet in it: it gets VirtFleet's kinds, the Nodes and the VMIs, whose Pods no
scheduler but the simulated one places, and loses them afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench import picture
from bench.controller import controller_process, cpu_time, resident, until_leading, vmi
from bench.node import cluster
from bench.observer import percentile
from bench.report import Figure
from bench.simulator import NAMESPACE, NODE_LEASES, Handlers, Kubelets, SignsOfLife, node
from virtfleet.admission.review import complete
from virtfleet.admission.updates import Requester
from virtfleet.api import crds
from virtfleet.cli import installing
from virtfleet.installation import Installation
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import CRDS, KUBEVIRTS, LEASES, NODES, VMIS, Obj, Resource
from virtfleet.local import supervisor
from virtfleet.local.processes import CONTROL_PLANE

TITLE = "many VMIs on 1,000 simulated nodes"

VMI_COUNT, NODE_COUNT = 1000, 1000
RATE = 20.0  # VMIs a second
STEP = 1000  # figures are of so many VMIs each
SETTLING = 10.0
PATIENCE = 120.0
OUTPUT = Path("bench-out/scale.svg")
SCHEDULER = "bench"
DELETION = 600.0
_OURS = "app=bench"
_NODES = [f"bench-node-{i}" for i in range(NODE_COUNT)]
_KUBEVIRT: Obj = {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": {}}


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process: MiB now, and seconds of CPU so far."""

    memory: float
    cpu: float


Look = Callable[[], Awaitable[Usage]]


@dataclass(frozen=True, slots=True)
class Step:
    """What some VMIs took, and what it was like when the last of them was made."""

    count: int
    seconds: list[float]
    controller: Usage
    server: Usage
    before: tuple[Usage, Usage]
    busy: float
    """Cores of this machine that were busy meanwhile, with whatever it was."""

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p95(self) -> float:
        return percentile(self.seconds, 95)

    @property
    def cpu(self) -> tuple[float, float]:
        """Milliseconds per VMI: the controller's and the API server's."""
        now = (self.controller, self.server)
        one, other = ((b.cpu - a.cpu) * 1000 / self.count for a, b in zip(self.before, now, strict=True))
        return one, other


def run(vmis: int = VMI_COUNT, kubeconfig: Path | None = None) -> list[Figure]:
    """On the cluster of a kubeconfig, else on one of its own."""
    if kubeconfig:
        steps = uvloop.run(_elsewhere(kubeconfig, vmis))
    else:
        with cluster([]) as (data, _):
            children = {child["name"]: child for child in supervisor.ask(data, op="status")["children"]}
            steps = uvloop.run(_here(data / "kubeconfig", vmis, children[CONTROL_PLANE]["pid"]))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(draw(steps))
    print(f"  {OUTPUT}", file=sys.stderr)
    return list(figures(steps))


async def _here(kubeconfig: Path, count: int, server: int) -> list[Step]:
    async def look() -> Usage:
        return _usage(server)

    async with Client(config.load(kubeconfig)) as user:
        await _furnish(user)
        return await _measure(user, kubeconfig, count, look)


async def _elsewhere(kubeconfig: Path, count: int) -> list[Step]:
    async with Client(config.load(kubeconfig)) as user:
        if await installing.installed(user):
            raise SystemExit("VirtFleet is installed there, and its controller would take part: uninstall it first")
        try:
            await _furnish(user)
            return await _measure(user, kubeconfig, count, lambda: _server_usage(user), clear=True)
        finally:
            await _clear(user)


async def _measure(user: Client, kubeconfig: Path, count: int, server: Look, *, clear: bool = False) -> list[Step]:
    async with AsyncExitStack() as stack:
        # Kubelets and handlers have connections of their own, as in a cluster.
        ours = [await stack.enter_async_context(Client(config.load(kubeconfig))) for _ in range(2)]
        handlers = Handlers(ours[1])
        for part in (Kubelets(ours[0], _NODES), handlers, SignsOfLife(ours[0], _NODES)):
            await stack.enter_async_context(_running(part.run()))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process, page = await stack.enter_async_context(controller_process(kubeconfig, directory))
        await until_leading(page)
        await asyncio.sleep(SETTLING)
        steps = [step async for step in _steps(user, handlers, count, server, process.pid)]
        if clear:
            await _remove_vmis(user)
    return steps


async def _steps(user: Client, handlers: Handlers, count: int, server: Look, controller: int) -> AsyncIterator[Step]:
    """Make all VMIs at the pace, and tell of each step as soon as all of it run."""
    loop = asyncio.get_running_loop()
    running: dict[str, asyncio.Future[float]] = {f"{NAMESPACE}/vmi-{i}": loop.create_future() for i in range(count)}

    def on_running(key: str) -> None:
        if not running[key].done():
            running[key].set_result(time.monotonic())

    handlers.on_running = on_running
    settings = Installation(_KUBEVIRT)
    requester = Requester(min(settings.service_accounts))

    async def one(key: str, at: float) -> float:
        await asyncio.sleep(at - time.monotonic())
        wanted = vmi(key.rpartition("/")[2])
        wanted["spec"]["schedulerName"] = SCHEDULER
        completed, _ = complete(wanted, settings, requester)  # as the gateway does, which is not here
        began = time.monotonic()
        await user.create(VMIS, completed, NAMESPACE)
        return await running[key] - began

    before, began = (_usage(controller), await server()), time.monotonic()
    before_at, before_cores = began, _busy_seconds()
    tasks = [asyncio.create_task(one(key, began + i / RATE)) for i, key in enumerate(running)]
    for first in range(0, count, STEP):
        part = tasks[first : first + STEP]
        async with asyncio.timeout(len(part) / RATE + PATIENCE):
            seconds = await asyncio.gather(*part)
        now = (_usage(controller), await server())
        at, cores = time.monotonic(), _busy_seconds()
        step = Step(len(part), seconds, *now, before, (cores - before_cores) / (at - before_at))
        before, before_at, before_cores = now, at, cores
        print(f"  {first + len(part)} VMIs: {_line(step)}", file=sys.stderr, flush=True)
        yield step


def _line(step: Step) -> str:
    controller, server = step.cpu
    return (
        f"p50 {step.p50:.2f} s, p95 {step.p95:.2f} s; controller {step.controller.memory:.0f} MiB, {controller:.1f} ms"
        f" a VMI; API server {step.server.memory:.0f} MiB, {server:.1f} ms a VMI; {step.busy:.1f} cores busy"
    )


def figures(steps: list[Step]) -> Iterable[Figure]:
    made = 0
    for step in steps:
        made += step.count
        until = f"to the {made:,}th VMI"
        yield Figure(f"created to Running p50, {until}", step.p50, "s", reference="KubeVirt at 8,000: 0.61")
        yield Figure("  p95", step.p95, "s", aim="at most 1.0", reference="KubeVirt at 8,000: 1.26")
        yield Figure("  controller's memory", step.controller.memory, "MiB", aim="at most 300", reference="1,272 MB")
        yield Figure("  controller's CPU per VMI", step.cpu[0], "ms", aim="does not grow")
        if step.server.memory:
            yield Figure("  API server's memory", step.server.memory, "MiB", aim="at most 600")
            yield Figure("  API server's CPU per VMI", step.cpu[1], "ms", aim="does not grow")
        yield Figure("  the machine meanwhile", step.busy, "cores busy", aim=f"less than its {os.cpu_count()}")


def draw(steps: list[Step]) -> str:
    at = list(itertools.accumulate(step.count for step in steps))
    return picture.page(
        at,
        "VMIs",
        [
            picture.Panel("created to Running, s", {"p50": [s.p50 for s in steps], "p95": [s.p95 for s in steps]}),
            picture.Panel(
                "memory, MiB",
                {"controller": [s.controller.memory for s in steps], "API server": [s.server.memory for s in steps]},
            ),
            picture.Panel(
                "CPU per VMI, ms",
                {"controller": [s.cpu[0] for s in steps], "API server": [s.cpu[1] for s in steps]},
            ),
        ],
    )


# The cluster around the VMIs.


async def _furnish(api: Client) -> None:
    """VirtFleet's kinds, a KubeVirt object, and the nodes."""
    for definition in crds.definitions():
        await api.create(CRDS, definition)
    async with asyncio.timeout(PATIENCE):
        while not await _made(api, _KUBEVIRT):  # noqa: ASYNC110 (a kind is served some time after its definition)
            await asyncio.sleep(0.2)
    await _each(_NODES, lambda name: api.create(NODES, node(name)))


async def _made(api: Client, kubevirt: Obj) -> bool:
    with ignoring(is_not_found):
        await api.create(KUBEVIRTS, kubevirt)
        return True
    return False


async def _remove_vmis(api: Client) -> None:
    """While controller and handlers are there: they have finalizers to take off."""
    await api.delete_collection(VMIS, NAMESPACE, labels=_OURS)
    async with asyncio.timeout(PATIENCE + DELETION):
        while await api.list(VMIS, NAMESPACE, labels=_OURS):  # noqa: ASYNC110
            await asyncio.sleep(1.0)


async def _clear(api: Client) -> None:
    kinds = [definition["metadata"]["name"] for definition in crds.definitions()]

    async def remove(resource: Resource, names: list[str], namespace: str | None = None) -> None:
        async def one(name: str) -> None:
            with ignoring(is_not_found):
                await api.delete(resource, name, namespace)

        await _each(names, one)

    await remove(NODES, _NODES)
    await remove(LEASES, _NODES, NODE_LEASES)
    await remove(LEASES, ["virt-controller"], NAMESPACE)
    await remove(KUBEVIRTS, ["kubevirt"], NAMESPACE)
    await remove(CRDS, kinds)


async def _each(names: list[str], act: Callable[[str], Awaitable[object]], at_once: int = 16) -> None:
    free = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with free:
            await act(name)

    await asyncio.gather(*map(one, names))


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        [end] = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(end, asyncio.CancelledError):
            print(f"  a part of the simulation failed: {end!r}", file=sys.stderr)


def _busy_seconds() -> float:
    """CPU time of the whole machine so far."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _usage(pid: int) -> Usage:
    return Usage(resident(pid), cpu_time(pid))


async def _server_usage(api: Client) -> Usage:
    """Of an API server that is not a process of this machine, as it tells itself; nothing where it does not."""
    page = b""
    with ignoring(is_not_found):
        page = await api.request("GET", "/metrics")
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name in ("process_resident_memory_bytes", "process_cpu_seconds_total")
    }
    return Usage(values.get("process_resident_memory_bytes", 0.0) / 2**20, values.get("process_cpu_seconds_total", 0.0))
