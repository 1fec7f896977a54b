"""Admission through virt-api's webhooks over TLS: latency of a review, alone and with fifty clients at once.

The gateway runs in a process of its own; the baseline is the same server with a handler that only says yes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from bench.report import Figure
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.installation import Installation
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.component import admission_path
from virtfleet.kube.credentials import Material

TITLE = "admission through the webhook"
ROUNDS, CLIENTS = 400, 50
VMI: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vmi", "namespace": "default"},
    "spec": {
        "domain": {"memory": {"guest": "512Mi"}, "devices": {"disks": [{"name": "d", "disk": {"bus": "virtio"}}]}},
        "volumes": [{"name": "d", "containerDisk": {"image": "example.com/disk:v1"}}],
    },
}


class Nothing:
    """An empty cluster with a KubeVirt object that says nothing."""

    def __init__(self) -> None:
        self._cluster = Installation({"metadata": {"namespace": "kubevirt"}, "spec": {}})

    def cluster(self) -> Installation:
        return self._cluster

    def vmis(self) -> Sequence[Any]:
        return ()

    def vmi(self, namespace: str, name: str) -> None:
        return None

    def migrations_of(self, namespace: str, vmi: str) -> Sequence[Any]:
        return ()


async def _yes(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b'{"response":{"allowed":true}}', content_type="application/json")


def _serve(context_files: dict[str, bytes], told: Connection) -> None:
    import uvloop

    async def main() -> None:
        app = web.Application()
        app.add_routes([*Webhooks(Nothing(), Material("key", b"key")).routes(), web.post("/yes", _yes)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        credential = certificates.Credential.of(context_files)
        assert credential is not None
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificates.server_context(credential))
        await site.start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    uvloop.run(main())


async def _latencies(session: aiohttp.ClientSession, url: str, body: bytes, clients: int) -> list[float]:
    took: list[float] = []

    async def client() -> None:
        for _ in range(max(1, ROUNDS // clients)):
            began = time.perf_counter()
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
                assert answer.status == 200
            took.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(client() for _ in range(clients)))
    return sorted(took)


def _review(operation: str = "CREATE") -> bytes:
    request = {
        "uid": "u",
        "operation": operation,
        "kind": {"group": "kubevirt.io", "version": "v1", "kind": VMI["kind"]},
        "namespace": "default",
        "userInfo": {"username": "someone"},
        "object": VMI,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


async def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        life = Lifespan(timedelta(hours=1), timedelta(minutes=1))
        authority = Authority.create("bench", life)
        files = authority.issue(Profile("virt-api", life, hosts=("127.0.0.1",))).files()
        certificates.write(Path(scratch), files)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(files, there), daemon=True)
        server.start()
        try:
            port = await asyncio.to_thread(here.recv)
            return await _measure(f"https://127.0.0.1:{port}", certificates.client_context(authority.bundle))
        finally:
            server.terminate()
            server.join()


async def _measure(url: str, context: ssl.SSLContext) -> list[Figure]:
    figures = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as session:
        for clients in (1, CLIENTS):
            await _latencies(session, f"{url}/yes", _review(), clients)  # connections are made before the clock runs
            bare = await _latencies(session, f"{url}/yes", _review(), clients)
            for name, path in (("defaults", "mutate"), ("validation", "validate")):
                took = await _latencies(session, url + admission_path("key", path), _review(), clients)
                who = f"{name}, {clients} client{'s' if clients > 1 else ''}"
                aim = "under 5 ms p50" if clients == 1 else ""
                middle = statistics.median(took)
                figures.append(Figure(f"{who}, p50", middle, "ms", statistics.median(bare), "a bare handler", aim))
                figures.append(Figure(f"{who}, p99", took[int(len(took) * 0.99) - 1], "ms"))
    return figures
