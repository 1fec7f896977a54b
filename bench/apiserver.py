"""How fast and how big the local API server is, beside its store alone and a bare aiohttp handler in the same run.

The server runs in a process of its own (apiserver_process.py); the clients are here, and speak HTTP by hand so that
they cost little of the machine that they share with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from bench.report import Figure
from virtfleet.local.apiserver.store import Store

TITLE = "local API server: starts, writes, reads, watches, memory"

PODS = 5000
WATCHERS, EVENTS = 500, 1000
SECONDS = 3.0
COLLECTION = "/api/v1/namespaces/bench/pods"


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


class Connection:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 22))

    async def request(self, method: str, path: str, body: bytes = b"", content: str = "application/json") -> bytes:
        await self.send(method, path, body, content)
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, lowered = int(head[9:12]), head.lower()
        if b"transfer-encoding: chunked" in lowered:
            answer = b"".join([chunk async for chunk in self.chunks()])
        else:
            at = lowered.index(b"content-length:") + 15
            answer = await self.reader.readexactly(int(lowered[at : lowered.index(b"\r\n", at)]))
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        return answer

    async def send(self, method: str, path: str, body: bytes = b"", content: str = "application/json") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()


@asynccontextmanager
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


async def store_alone(directory: Path, clients: int) -> tuple[float, float]:
    """Creates and updates per second without any server around the store."""
    store = Store(directory)
    stored = orjson.loads(orjson.dumps(pod("p")))
    stored["metadata"]["uid"] = "x" * 36

    async def create(client: int, turn: int) -> None:
        obj = {**stored, "metadata": {**stored["metadata"], "name": f"p-{client}-{turn}"}}
        await store.write("/pods", "bench", f"p-{client}-{turn}", obj, base=None)

    async def update(client: int, turn: int) -> None:
        name = f"p-{client}-0"
        base = store.get("/pods", "bench", name)
        obj = {**stored, "metadata": {**stored["metadata"], "name": name, "labels": {"turn": str(turn)}}}
        await store.write("/pods", "bench", name, obj, base=base)

    creates = await per_second(clients, create)
    updates = await per_second(clients, update)
    await store.close()
    return creates, updates


async def writes(port: int, clients: int, process: subprocess.Popen[bytes]) -> tuple[float, float, float]:
    """Creates and updates per second, and the server's CPU microseconds per create."""
    connections = [await Connection.open(port) for _ in range(clients)]

    async def create(client: int, turn: int) -> None:
        body = orjson.dumps(pod(f"w{clients}-{client}-{turn}"))
        await connections[client].request("POST", COLLECTION, body)

    async def update(client: int, turn: int) -> None:
        path = f"{COLLECTION}/w{clients}-{client}-0"
        body = orjson.dumps({"metadata": {"labels": {"turn": str(turn)}}})
        await connections[client].request("PATCH", path, body, "application/merge-patch+json")

    await connections[0].request("POST", COLLECTION, orjson.dumps(pod("first")))  # schemas are compiled on first use
    used = cpu(process)
    creates = await per_second(clients, create)
    cost = (cpu(process) - used) / (creates * SECONDS) * 1e6
    updates = await per_second(clients, update)
    return creates, updates, cost


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
    await writer.request("POST", "/api/v1/namespaces/bench/configmaps", b'{"metadata":{"name":"beat"}}')
    sent: dict[str, float] = {}
    latencies: list[float] = []
    connections = [await Connection.open(port) for _ in range(WATCHERS)]
    path = (
        "/api/v1/namespaces/bench/configmaps?watch=1&resourceVersion="
        + orjson.loads(await writer.request("GET", "/api/v1/namespaces/bench/configmaps"))["metadata"][
            "resourceVersion"
        ]
    )

    async def watch(connection: Connection) -> None:
        await connection.send("GET", path)
        await connection.reader.readuntil(b"\r\n\r\n")
        seen, rest = 0, b""
        async for chunk in connection.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            now = time.monotonic()
            for line in lines:
                at = line.index(b'"turn":"') + 8
                latencies.append(now - sent[line[at : line.index(b'"', at)].decode()])
            seen += len(lines)
            if seen == EVENTS:
                connection.writer.close()
                return

    watching = [asyncio.create_task(watch(connection)) for connection in connections]
    while b"apiserver_watchers %d" % WATCHERS not in await writer.request("GET", "/metrics"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    used, began = cpu(process), time.monotonic()
    for turn in range(EVENTS):
        sent[str(turn)] = time.monotonic()
        body = orjson.dumps({"data": {"turn": str(turn)}})
        await writer.request("PATCH", "/api/v1/namespaces/bench/configmaps/beat", body, "application/merge-patch+json")
    await asyncio.gather(*watching)
    return latencies, cpu(process) - used, time.monotonic() - began


def free_ports() -> int:
    """A port that is free, and hopefully the next one too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def run() -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        for clients in (1, 32):
            figures += await _write_figures(Path(scratch), clients)
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


async def _write_figures(scratch: Path, clients: int) -> list[Figure]:
    store_creates, store_updates = await store_alone(scratch / f"store-{clients}", clients)
    port = free_ports()
    async with running(scratch / f"server-{clients}", port) as (process, _):
        first = await Connection.open(port)
        await first.request("POST", "/api/v1/namespaces", b'{"metadata":{"name":"bench"}}')
        creates, updates, cost = await writes(port, clients, process)
    plural = "s" if clients > 1 else ""
    aim = ">= 0.6 of store" if clients > 1 else ""
    return [
        Figure(f"durable creates, {clients} client{plural}", creates, "/s", store_creates, "store alone", aim),
        Figure(f"durable updates, {clients} client{plural}", updates, "/s", store_updates, "store alone"),
        Figure(f"server CPU per create, {clients} client{plural}", cost, "us"),
    ]
