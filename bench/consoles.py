"""Consoles through virt-api and virt-handler, with simulated launchers: 200 at once, and connects at random.

virt-api and virt-handler run in processes of their own, with the code and the TLS that they have in a cluster.
Simulated are the launchers (unix sockets that echo) and the API server's answers to virt-api; its aggregation layer is
left out. The baseline is a bare websocket echo over TLS in another process, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import ssl
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
import uvloop
from aiohttp import web

from bench.report import Figure
from virtfleet.api.subresources import GROUP, PROTOCOL
from virtfleet.gateway.__main__ import serve
from virtfleet.handler.access.api import CONSOLE, Access
from virtfleet.handler.access.vsock import Vsock
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.handler.vms.instances import decode_instance
from virtfleet.kube import certificates, component
from virtfleet.kube.api import Page, WatchEvent
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.kube.resource import CONFIG_MAPS, KUBEVIRTS, PODS, VMIS, Obj, Resource
from virtfleet.protocol.messages import DomainState, Status

TITLE = "consoles through virt-api and virt-handler, with simulated launchers"
CONSOLES = 200
ROUNDS = 100  # of one keystroke and its echo, for each console
KEYSTROKE = b"x" * 16
BULK, CHUNK = 64 << 20, 32 << 10
CHURN = 120.0  # seconds of connects and disconnects
AT_ONCE = 20  # that connect and disconnect at one time
LIFE = Lifespan(timedelta(hours=2), timedelta(hours=1))
GATEWAY, HANDLER, FRONT = "kubevirt:virt-api", "kubevirt:virt-handler", "front-proxy-client"
NODE = "node01"
Main = Callable[[Path, int, Connection], Any]


# --- what is simulated


class Answers:
    """The API server as virt-api sees it: every console's VMI runs on one node, and everybody may use it."""

    def __init__(self, front_proxy: bytes) -> None:
        names = {"allowed-names": FRONT, "username-headers": "X-Remote-User", "group-headers": "X-Remote-Group"}
        data = {f"requestheader-{key}": orjson.dumps([value]).decode() for key, value in names.items()}
        data["requestheader-client-ca-file"] = front_proxy.decode()
        ready = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        pod = {"metadata": _meta("virt-handler", "kubevirt"), "spec": {"nodeName": NODE}, "status": ready}
        self._listed: dict[Resource, Obj] = {
            CONFIG_MAPS: {"metadata": _meta("extension-apiserver-authentication", "kube-system"), "data": data},
            PODS: pod,
            KUBEVIRTS: {"metadata": _meta("kubevirt", "kubevirt"), "spec": {}},
        }

    async def get(self, resource: Resource, name: str, namespace: str, **_: Any) -> Obj:
        return {"metadata": _meta(name, namespace), "spec": {}, "status": {"phase": "Running", "nodeName": NODE}}

    async def create(self, resource: Resource, obj: Obj, *_: Any, **__: Any) -> Obj:
        return {**obj, "status": {"allowed": True}}

    async def pages(self, resource: Resource, *_: Any, **__: Any) -> AsyncIterator[Page]:
        found = self._listed.get(resource)
        yield Page([orjson.dumps(found)] if found else [], "1", "")

    @asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def nothing() -> AsyncIterator[WatchEvent]:
            await asyncio.Event().wait()
            yield WatchEvent("BOOKMARK", b"")

        yield nothing()


def _meta(name: str, namespace: str) -> Obj:
    return {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


# --- processes


async def virt_api(place: Path, port: int, told: Connection) -> None:
    front_proxy = certificates.read(place / "front-proxy")[certificates.BUNDLE]
    options = _options(place / "virt-api", port, namespace="kubevirt", handler_port=port + 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(options, Answers(front_proxy)))  # type: ignore[arg-type]
        group.create_task(_report_tasks(told))


async def _report_tasks(told: Connection) -> None:
    """Answer each question with the number of tasks."""
    while await asyncio.to_thread(told.recv):
        told.send(len(asyncio.all_tasks()))


async def virt_handler(place: Path, port: int, told: Connection) -> None:
    launcher = SimpleNamespace(state=DomainState(status=Status.RUNNING))
    running, sockets = {}, []
    for number in range(CONSOLES):
        name = f"vm{number}"
        directory = place / "pods" / name / VOLUMES / "private" / name
        directory.mkdir(parents=True)
        sockets.append(await asyncio.start_unix_server(_echo, directory / CONSOLE.name))
        instance = decode_instance(orjson.dumps({"metadata": _meta(name, "default")}))
        running[f"default/{name}"] = instance, SimpleNamespace(record=SimpleNamespace(pod=name), launcher=launcher)
    vms: Any = SimpleNamespace(running=running.get)
    access = Access(vms, SimpleNamespace(), place / "pods", Vsock(lambda: None), caller=GATEWAY, unready=lambda: "")  # type: ignore[arg-type]
    options = _options(place / "virt-handler", port)
    await component.serve(options, access.routes(), clients=component.own_authority)


async def bare(place: Path, port: int, told: Connection) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        stream = web.WebSocketResponse(protocols=(PROTOCOL,), compress=False)
        await stream.prepare(request)
        async for message in stream:
            await stream.send_bytes(message.data)
        return stream

    await component.serve(_options(place / "virt-handler", port), [web.get("/echo", echo)])


def _options(directory: Path, port: int, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(certificates=directory, host="127.0.0.1", port=port, **more)


def _run(main: Main, place: Path, port: int, told: Connection) -> None:
    logging.disable()
    uvloop.run(main(place, port, told))


@dataclass
class Process:
    pid: int
    pipe: Connection

    def tasks(self) -> int:
        self.pipe.send(True)
        return int(self.pipe.recv())

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def _started(main: Main, place: Path, port: int) -> Iterator[Process]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(main, place, port, there), daemon=True)
    process.start()
    try:
        yield Process(process.pid or 0, here)
    finally:
        process.terminate()
        process.join()


# --- measuring


@dataclass
class Way:
    """How a client opens a stream."""

    session: aiohttp.ClientSession
    url: str  # with {} for the number of a console

    def stream(self, number: int) -> Any:
        return self.session.ws_connect(self.url.format(number), protocols=(PROTOCOL,), max_msg_size=0, timeout=_CLOSE)


_CLOSE = aiohttp.ClientWSTimeout(ws_close=5.0)  # type: ignore[attr-defined]


async def _keystrokes(way: Way) -> tuple[list[float], float]:
    """Latencies in ms of keystrokes in all consoles at once, and echoes per second."""
    took: list[float] = []
    ready = 0
    go = asyncio.Event()

    async def console(number: int) -> None:
        nonlocal ready
        async with way.stream(number) as stream:
            ready += 1
            if ready == CONSOLES:
                go.set()
            await go.wait()
            for _ in range(ROUNDS):
                began = time.perf_counter()
                await stream.send_bytes(KEYSTROKE)
                await stream.receive_bytes()
                took.append((time.perf_counter() - began) * 1000)

    tasks = [asyncio.create_task(console(number)) for number in range(CONSOLES)]
    await go.wait()
    began = time.perf_counter()
    await asyncio.gather(*tasks)
    return sorted(took), len(took) / (time.perf_counter() - began)


async def _alone(way: Way) -> float:
    """Latency in ms (p50) of keystrokes in one console, with all others open and quiet."""
    took = []
    async with way.stream(0) as stream:
        for _ in range(500):
            began = time.perf_counter()
            await stream.send_bytes(KEYSTROKE)
            await stream.receive_bytes()
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def _bulk(way: Way) -> float:
    """MiB per second through one console and back."""
    async with way.stream(0) as stream:

        async def send() -> None:
            for _ in range(BULK // CHUNK):
                await stream.send_bytes(b"x" * CHUNK)

        began = time.perf_counter()
        sending = asyncio.create_task(send())
        received = 0
        while received < BULK:
            received += len(await stream.receive_bytes())
        await sending
        return (BULK >> 20) / (time.perf_counter() - began)


async def _churn(way: Way, seconds: float) -> int:
    """Sessions that come, type and go, some without a word, until the time is over."""
    end = time.monotonic() + seconds
    chance, done = random.Random(8), 0

    async def visitor() -> None:
        nonlocal done
        while time.monotonic() < end:
            async with way.stream(chance.randrange(CONSOLES)) as stream:
                for _ in range(chance.randrange(4)):
                    await stream.send_bytes(KEYSTROKE)
                    if (await stream.receive()).type is not aiohttp.WSMsgType.BINARY:
                        break  # somebody else took over
                if chance.random() < 0.3 and stream._response.connection:
                    stream._response.connection.transport.abort()
            done += 1

    await asyncio.gather(*(visitor() for _ in range(AT_ONCE)))
    return done


async def _settled(process: Process) -> tuple[int, int, float]:
    """Tasks, descriptors and memory, once the first two no longer change."""
    last, same = (0, 0), 0
    while same < 10:
        await asyncio.sleep(0.1)
        now = (process.tasks(), process.descriptors())
        last, same = now, same + 1 if now == last else 0
    return *last, process.memory()


def _issue(place: Path) -> tuple[Credential, bytes]:
    """Certificates on disk for all; answers the front proxy's, and what its servers are checked against."""
    installation, front = Authority.create("kubevirt-ca", LIFE), Authority.create("front-proxy-ca", LIFE)
    for name, profile in (
        ("virt-api", Profile(GATEWAY, LIFE, hosts=("virt-api",), client=True)),
        ("virt-handler", Profile(HANDLER, LIFE, hosts=("virt-handler",), client=True)),
    ):
        certificates.write(place / name, installation.issue(profile).files())
    credential = front.issue(Profile(FRONT, LIFE, client=True))
    certificates.write(place / "front-proxy", credential.files())
    return credential, installation.bundle


async def _until_ready(session: aiohttp.ClientSession, anybody: ssl.SSLContext, *ports: int) -> None:
    for port in ports:
        while True:
            try:
                async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=anybody) as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientConnectorError:
                pass
            await asyncio.sleep(0.05)


def _client(trust: bytes, credential: Credential | None = None) -> ssl.SSLContext:
    context = certificates.client_context(trust, credential)
    context.check_hostname = False  # servers are called by their address here
    return context


async def run() -> list[Figure]:
    port = 21000 + os.getpid() % 10000
    with tempfile.TemporaryDirectory(prefix="vfb") as scratch:
        place = Path(scratch)
        credential, trust = _issue(place)
        with (
            _started(virt_api, place, port) as gateway,
            _started(virt_handler, place, port + 1),
            _started(bare, place, port + 2),
        ):
            connector = aiohttp.TCPConnector(ssl=_client(trust, credential), limit=0)
            headers = {"X-Remote-User": "bench"}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                await _until_ready(session, _client(trust), port, port + 1, port + 2)
                console = f"/apis/{GROUP}/v1/namespaces/default/{VMIS.plural}/vm{{}}/console"
                through = Way(session, f"https://127.0.0.1:{port}{console}")
                return await _measure(through, Way(session, f"https://127.0.0.1:{port + 2}/echo"), gateway)


async def _measure(through: Way, echo: Way, gateway: Process) -> list[Figure]:
    name = "a bare websocket echo"
    figures = []
    base, value = await _alone(echo), await _alone(through)
    figures.append(Figure("one console, keystroke and echo, p50", value, "ms", base, name))
    (base_took, base_rate), (took, rate) = await _keystrokes(echo), await _keystrokes(through)
    figures.append(
        Figure(f"{CONSOLES} consoles typing, p50", statistics.median(took), "ms", statistics.median(base_took), name)
    )
    figures.append(Figure(f"{CONSOLES} consoles typing, p99", _p99(took), "ms", _p99(base_took), name))
    figures.append(Figure(f"{CONSOLES} consoles typing, echoes", rate, "per s", base_rate, name))
    figures.append(Figure("one console, bytes and their echo", await _bulk(through), "MiB/s", await _bulk(echo), name))
    await _churn(through, 5.0)
    tasks, files, memory = await _settled(gateway)
    sessions = await _churn(through, CHURN)
    more_tasks, more_files, more_memory = await _settled(gateway)
    figures.append(Figure("sessions at random", sessions / CHURN, "per s"))
    figures.append(Figure(f"tasks more after {sessions} sessions", more_tasks - tasks, "", aim="0"))
    figures.append(Figure("descriptors more", more_files - files, "", aim="0"))
    figures.append(Figure("memory more (virt-api)", more_memory - memory, "MiB", aim="under 5"))
    figures.append(Figure("memory (virt-api)", more_memory, "MiB"))
    return figures


def _p99(took: list[float]) -> float:
    return took[int(len(took) * 0.99) - 1]
