"""How fast and how big the local API server is, beside its store alone and a bare aiohttp handler in the same run.

The server runs in a process of its own (apiserver_process.py); the clients are here, and read only as much HTTP as they
must (apiserver_client.py), because they share two cores with it. The store alone is measured without any client, so a
ratio also says what HTTP, TLS and the clients themselves cost: `server CPU` is the figure to compare versions by.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.apiserver_client import Connection
from bench.report import Figure
from virtfleet.local.apiserver.objects.store import Store

TITLE = "local API server: starts, writes, reads, watches, memory"

PODS = 5000
WATCHERS, EVENTS = 500, 1000
SECONDS = 3.0
NAMESPACE = "/api/v1/namespaces/bench"
COLLECTION = f"{NAMESPACE}/pods"
MERGE = "application/merge-patch+json"
TURN = re.compile(rb'"turn":"(\d+)"')


def pod(name: str) -> dict[str, Any]:
    """A launcher-like pod; about 5 KiB once it is stored."""
    env = [{"name": f"SETTING_{i}", "value": f"value-{i}-of-a-realistic-length"} for i in range(12)]
    mounts = [{"name": f"volume-{i}", "mountPath": f"/var/run/kubevirt/part-{i}"} for i in range(8)]
    container = {
        "image": "registry.example/virt-launcher:v1",
        "command": ["/usr/bin/virt-launcher", "--name", name, "--namespace", "bench", "--grace-period", "45"],
        "env": env,
        "resources": {"requests": {"cpu": "100m", "memory": "768Mi"}, "limits": {"devices.kubevirt.io/kvm": "1"}},
        "volumeMounts": mounts,
        "securityContext": {"runAsUser": 107, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/domain": name, "vm.kubevirt.io/name": name},
            "annotations": {"kubevirt.io/domain": name, "descheduler.alpha.kubernetes.io/request-evict-only": ""},
        },
        "spec": {
            "containers": [{"name": "compute", **container}, {"name": "guest-console-log", **container}],
            "volumes": [{"name": f"volume-{i}", "emptyDir": {}} for i in range(8)],
            "nodeSelector": {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"},
            "restartPolicy": "Never",
        },
    }


@contextlib.asynccontextmanager
async def running(directory: Path, port: int) -> AsyncIterator[tuple[subprocess.Popen[bytes], float]]:
    """The server's process, and the seconds until it was ready."""
    began = time.monotonic()
    command = [sys.executable, "-m", "bench.apiserver_process", str(directory), str(port)]
    process = subprocess.Popen(command)  # noqa: ASYNC220 - nothing else runs meanwhile
    try:
        while True:
            try:
                connection = await Connection.open(port)
                await connection.request("GET", "/readyz")
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError("the server ended while it started") from None
                await asyncio.sleep(0.01)
        yield process, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def rss(process: subprocess.Popen[bytes]) -> float:
    """MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def cpu(process: subprocess.Popen[bytes]) -> float:
    """Seconds used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def per_second(clients: int, act: Callable[[int, int], Awaitable[object]]) -> float:
    """How often `act(client, turn)` happens in a second with so many clients."""
    done = 0
    began = time.monotonic()

    async def client(number: int) -> None:
        nonlocal done
        turn = 0
        while time.monotonic() - began < SECONDS:
            await act(number, turn)
            turn += 1
            done += 1

    await asyncio.gather(*map(client, range(clients)))
    return done / (time.monotonic() - began)


def config_map(name: str) -> dict[str, Any]:
    """The least that can be stored."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}}


MAKERS = {"pods": pod, "configmaps": config_map}


async def store_alone(directory: Path, clients: int, plural: str) -> tuple[float, float]:
    """Creates and updates per second without any server around the store."""
    store = Store(directory)
    stored = MAKERS[plural]("p")
    stored["metadata"] |= {"uid": "x" * 36, "creationTimestamp": "2000-01-01T00:00:00Z", "namespace": "bench"}

    async def create(client: int, turn: int) -> None:
        obj = {**stored, "metadata": {**stored["metadata"], "name": f"p-{client}-{turn}"}}
        await store.write(f"/{plural}", "bench", f"p-{client}-{turn}", obj, base=None)

    async def update(client: int, turn: int) -> None:
        name = f"p-{client}-0"
        base = store.get(f"/{plural}", "bench", name)
        obj = {**stored, "metadata": {**stored["metadata"], "name": name, "labels": {"turn": str(turn)}}}
        await store.write(f"/{plural}", "bench", name, obj, base=base)

    creates = await per_second(clients, create)
    updates = await per_second(clients, update)
    await store.close()
    return creates, updates


async def writes(
    port: int, clients: int, plural: str, process: subprocess.Popen[bytes]
) -> tuple[float, float, float, float]:
    """Creates and updates per second, and the server's CPU microseconds for each."""
    connections = [await Connection.open(port) for _ in range(clients)]
    collection = f"{NAMESPACE}/{plural}"
    template = orjson.dumps(MAKERS[plural]("THE-NAME"))

    async def create(client: int, turn: int) -> None:
        body = template.replace(b"THE-NAME", b"w%d-%d-%d" % (clients, client, turn))
        await connections[client].request("POST", collection, body)

    async def update(client: int, turn: int) -> None:
        body = b'{"metadata":{"labels":{"turn":"%d"}}}' % turn
        await connections[client].request("PATCH", f"{collection}/w{clients}-{client}-0", body, MERGE)

    async def measured(act: Callable[[int, int], Awaitable[object]]) -> tuple[float, float]:
        used = cpu(process)
        rate = await per_second(clients, act)
        return rate, (cpu(process) - used) / (rate * SECONDS) * 1e6

    await connections[0].request("POST", collection, template.replace(b"THE-NAME", b"first"))  # compiles the schema
    creates, create_cost = await measured(create)
    updates, update_cost = await measured(update)
    for connection in connections:
        connection.close()
    return creates, updates, create_cost, update_cost


async def reads(port: int) -> tuple[float, float]:
    served = [await Connection.open(port) for _ in range(8)]
    bare = [await Connection.open(port + 1) for _ in range(8)]
    await served[0].request("POST", COLLECTION, orjson.dumps(pod("read")))
    gets = await per_second(8, lambda client, _: served[client].request("GET", f"{COLLECTION}/read"))
    baseline = await per_second(8, lambda client, _: bare[client].request("GET", "/bare"))
    await served[0].request("DELETE", f"{COLLECTION}/read")
    return gets, baseline


async def fill(port: int) -> None:
    connections = [await Connection.open(port) for _ in range(16)]

    async def some(number: int) -> None:
        for i in range(number, PODS, len(connections)):
            await connections[number].request("POST", COLLECTION, orjson.dumps(pod(f"pod-{i:05}")))

    await asyncio.gather(*map(some, range(len(connections))))


async def watches(port: int, process: subprocess.Popen[bytes]) -> tuple[list[float], float, float]:
    """Seconds from before a write to its event, over all watchers; the server's CPU seconds; the writes' seconds."""
    writer = await Connection.open(port)
    collection = f"{NAMESPACE}/configmaps"
    made = orjson.loads(await writer.request("POST", collection, orjson.dumps(config_map("beat"))))
    sent: dict[bytes, float] = {}
    latencies: list[float] = []
    connections = [await Connection.open(port) for _ in range(WATCHERS)]
    path = f"{collection}?watch=1&resourceVersion={made['metadata']['resourceVersion']}"

    async def watch(connection: Connection) -> None:
        seen = 0
        async for turns in connection.stream(path, TURN):
            now = time.monotonic()
            latencies.extend(now - sent[turn] for turn in turns)
            seen += len(turns)
            if seen == EVENTS:
                connection.close()
                return

    watching = [asyncio.create_task(watch(connection)) for connection in connections]
    while b"apiserver_watchers %d" % WATCHERS not in await writer.request("GET", "/metrics"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    used, began = cpu(process), time.monotonic()
    for turn in range(EVENTS):
        sent[b"%d" % turn] = time.monotonic()
        await writer.request("PATCH", f"{collection}/beat", b'{"data":{"turn":"%d"}}' % turn, MERGE)
    await asyncio.gather(*watching)
    return latencies, cpu(process) - used, time.monotonic() - began


def free_ports() -> int:
    """A port that is free, and so is the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


def run() -> list[Figure]:
    return uvloop.run(_figures())


async def _figures() -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        for plural in MAKERS:
            for clients in (1, 32):
                figures += await _write_figures(Path(scratch), clients, plural)
        port = free_ports()
        async with running(Path(scratch, "big"), port) as (process, ready):
            figures.append(Figure("start to /readyz", ready, "s", aim="<= 1.5"))
            first = await Connection.open(port)
            await first.request("POST", "/api/v1/namespaces", b'{"metadata":{"name":"bench"}}')
            figures.append(Figure("memory, idle", rss(process), "MiB"))
            gets, bare = await reads(port)
            figures.append(Figure("GET", gets, "/s", bare, "bare aiohttp"))
            await fill(port)
            began = time.monotonic()
            listed = await first.request("GET", COLLECTION)
            figures.append(Figure("list of 5,000 pods", (time.monotonic() - began) * 1000, "ms"))
            figures.append(Figure("size of that list", len(listed) / 1024 / 1024, "MiB"))
            figures.append(Figure("memory, 5,000 pods", rss(process), "MiB", aim="< 120"))
            latencies, used, took = await watches(port, process)
            cuts = statistics.quantiles(latencies, n=100)
            count = f"{WATCHERS} watchers x {EVENTS:,} events"
            figures.append(Figure(f"{count}: p50", cuts[49] * 1000, "ms"))
            figures.append(Figure(f"{count}: p99", cuts[98] * 1000, "ms"))
            figures.append(Figure(f"{count}: all delivered", len(latencies) / took, "events/s"))
            figures.append(Figure(f"{count}: server CPU", used / len(latencies) * 1e6, "us/event"))
        async with running(Path(scratch, "big"), port) as (process, ready):
            figures.append(Figure("start with 5,000 pods", ready, "s", aim="<= 1.5"))
            figures.append(Figure("memory after that start", rss(process), "MiB"))
    return figures


async def _write_figures(scratch: Path, clients: int, plural: str) -> list[Figure]:
    store_creates, store_updates = await store_alone(scratch / f"store-{plural}-{clients}", clients, plural)
    port = free_ports()
    async with running(scratch / f"server-{plural}-{clients}", port) as (process, _):
        first = await Connection.open(port)
        await first.request("POST", "/api/v1/namespaces", b'{"metadata":{"name":"bench"}}')
        creates, updates, create_cost, update_cost = await writes(port, clients, plural, process)
    what = f"{plural}, {clients} client{'s' if clients > 1 else ''}"
    aim = ">= 0.6 of store" if clients > 1 else ""
    return [
        Figure(f"durable creates of {what}", creates, "/s", store_creates, "store alone", aim),
        Figure(f"durable updates of {what}", updates, "/s", store_updates, "store alone"),
        Figure(f"server CPU per create of {what}", create_cost, "us"),
        Figure(f"server CPU per update of {what}", update_cost, "us"),
    ]
