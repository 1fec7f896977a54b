"""How fast and how big virt-controller is, with simulated nodes, kubelets and handlers.

The controller runs in a process of its own and speaks HTTPS; API server and simulators are here. The VMIs come in two
ways: a few at a time, which shows how long one takes, and all at once, which shows how many a second are managed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
import uvloop
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from bench.report import Figure
from bench.simulator import NAMESPACE, Simulation, simulation
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential, server_context
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.serving.http import Server

TITLE = "virt-controller alone: 2,000 VMIs on 100 simulated nodes"

VMI_COUNT = 2000
NODES = 100
WINDOW = 10  # VMIs that are on their way at one time, where they do not come all at once
PATIENCE = 300.0


def vmi(name: str) -> Obj:
    """A small VMI as people write it."""
    devices = {
        "disks": [{"name": "root", "disk": {"bus": "virtio"}}, {"name": "cloudinit", "disk": {"bus": "virtio"}}],
        "interfaces": [{"name": "default", "masquerade": {}}],
    }
    volumes = [
        {"name": "root", "containerDisk": {"image": "registry.example/guest:v1"}},
        {"name": "cloudinit", "cloudInitNoCloud": {"userData": "#cloud-config\npassword: guest\n"}},
    ]
    domain = {"resources": {"requests": {"memory": "128Mi"}}, "devices": devices}
    return {
        "apiVersion": VMIS.api_version,
        "kind": VMIS.kind,
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {"domain": domain, "networks": [{"name": "default", "pod": {}}], "volumes": volumes},
    }


def run() -> list[Figure]:
    return uvloop.run(_measure())


async def _measure() -> list[Figure]:
    steady, at_once = await _round(WINDOW), await _round(VMI_COUNT)
    times = sorted(steady.seconds)
    figures = [
        Figure(
            f"created to Running p50, {WINDOW} VMIs at a time (simulated)",
            statistics.median(times),
            "s",
            aim="below the reference",
            reference="KubeVirt on KWOK 0.61",
        ),
        Figure("  p95", times[int(len(times) * 0.95)], "s", reference="KubeVirt on KWOK 1.26"),
        Figure(f"VMIs a second, {WINDOW} at a time (simulated)", VMI_COUNT / steady.duration, "1/s"),
        Figure("  all at once", VMI_COUNT / at_once.duration, "1/s"),
        Figure("controller's CPU time per VMI", at_once.cpu / VMI_COUNT * 1000, "ms"),
        Figure(
            f"controller's memory with {VMI_COUNT} VMIs",
            steady.memory,
            "MiB",
            baseline=steady.idle_memory,
            baseline_name="with none",
            reference="KubeVirt 1,272 MB at 8,000",
        ),
    ]
    references = {("patch", "virtualmachineinstances"): "KubeVirt 5.3 + 0.9", ("patch", "pods"): "KubeVirt 2.2"}
    for (verb, resource), number in sorted((steady.calls + steady.handler_writes).items()):
        name = resource.partition(".")[0]
        who = "controller and handler" if (verb, resource) in steady.handler_writes else "controller"
        reference = references.get((verb, name), "")
        figures.append(Figure(f"{verb} {name} per VMI ({who})", number / VMI_COUNT, "calls", reference=reference))
    return figures


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen while all VMIs came."""

    seconds: list[float]
    """From the creation of each VMI to Running."""
    duration: float
    calls: Counter[tuple[str, str]]
    """The controller's, by verb and resource."""
    handler_writes: Counter[tuple[str, str]]
    cpu: float
    memory: float
    idle_memory: float


async def _round(window: int) -> Round:
    with tempfile.TemporaryDirectory() as directory:
        async with (
            simulation(Path(directory) / "store", nodes=NODES) as cluster,
            served(cluster) as url,
            controller_process(kubeconfig_of(url, Path(directory)), Path(directory)) as (process, page),
        ):
            await until_leading(page)
            pid = process.pid
            idle_memory, cpu, before = resident(pid), cpu_time(pid), await _calls(page)
            began = time.monotonic()
            seconds = await asyncio.wait_for(_run_all(cluster, window), PATIENCE)
            duration = time.monotonic() - began
            await asyncio.sleep(1.0)  # events and what else trails behind
            calls = await _calls(page)
            calls.subtract(before)
            return Round(
                seconds=seconds,
                duration=duration,
                calls=+calls,
                handler_writes=Counter({(verb, str(VMIS)): n for (verb, _), n in cluster.handler_api.writes.items()}),
                cpu=cpu_time(pid) - cpu,
                memory=resident(pid),
                idle_memory=idle_memory,
            )


async def _run_all(cluster: Simulation, window: int) -> list[float]:
    """Create all VMIs, so many at a time, and wait until they run; the answer is how long each took."""
    running: dict[str, asyncio.Event] = {f"{NAMESPACE}/vmi-{i}": asyncio.Event() for i in range(VMI_COUNT)}
    cluster.handlers.on_running = lambda key: running[key].set()
    free = asyncio.Semaphore(window)

    async def one(key: str) -> float:
        async with free:
            began = time.monotonic()
            await cluster.api.create(VMIS, vmi(key.rpartition("/")[2]), NAMESPACE)
            await running[key].wait()
            return time.monotonic() - began

    return await asyncio.gather(*map(one, running))


def _credential() -> Credential:
    lifespan = Lifespan(timedelta(days=1), timedelta(hours=1))
    return Authority.create("bench", lifespan).issue(Profile("bench", lifespan, hosts=("127.0.0.1",)))


@asynccontextmanager
async def served(cluster: Simulation) -> AsyncIterator[str]:
    """The simulated cluster's API on a socket; everybody may do everything."""

    async def everyone(request: web.Request) -> User:
        return MASTER

    server = Server(cluster.operations, cluster.operations.kinds, everyone, lambda asked: True)
    [port] = await server.start([("127.0.0.1", 0)], server_context(_credential()))
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        await server.stop()


def kubeconfig_of(url: str, directory: Path) -> Path:
    """The way to a server that lets everybody in."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "bench",
                "clusters": [{"name": "bench", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
                "contexts": [{"name": "bench", "context": {"cluster": "bench", "namespace": NAMESPACE}}],
            }
        )
    )
    return kubeconfig


@asynccontextmanager
async def controller_process(
    kubeconfig: Path, directory: Path, name: str = "virt-controller"
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process of the controller and the address of its page of metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    certificates.write(directory / "certificates", _credential().files())
    flags = {"kubeconfig": kubeconfig, "certificates": directory / "certificates", "host": "127.0.0.1", "port": port}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "virtfleet.controller"),
        *(f"--{flag}={value}" for flag, value in flags.items()),
        env={**os.environ, "POD_NAME": name},
        stderr=(directory / f"{name}.log").open("wb"),
    )
    try:
        yield process, f"https://127.0.0.1:{port}/metrics"
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _page(page: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(page, ssl=False) as answer:
        return await answer.text()


async def leads(page: str) -> bool:
    """Whether this controller leads; false as long as it does not answer."""
    try:
        return "kubevirt_virt_controller_leading_status 1.0" in await _page(page)
    except aiohttp.ClientError:
        return False


async def until_leading(page: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await leads(page):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.1)


async def _calls(page: str) -> Counter[tuple[str, str]]:
    """What the controller has asked of the API server so far, but for its lease and its watches."""
    calls: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(await _page(page)):
        for sample in family.samples:
            if sample.name == "kubevirt_rest_client_requests_total":
                verb, resource = sample.labels["verb"], sample.labels["resource"]
                if not resource.startswith("leases") and verb not in ("watch", "list"):
                    calls[verb, resource] += int(sample.value)
    return calls


def resident(pid: int) -> float:
    """Mebibytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_time(pid: int) -> float:
    """Seconds of CPU time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
