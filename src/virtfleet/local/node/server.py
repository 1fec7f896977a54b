"""The agent's own door, for the API server: containers' logs, commands run in them, what they use, pods' ports.

It is a unix socket in the node's directory: both ends are on this machine by the nature of a local cluster, and the
file's mode lets in nobody but the cluster's own user. No port, no certificate to renew.

Log files are in the format of the container runtime interface: time, stream, P or F, text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from virtfleet.api import times
from virtfleet.kube.cache import key_of
from virtfleet.kube.errors import ApiError
from virtfleet.local.node import cgroups
from virtfleet.local.node.containers import Container
from virtfleet.local.node.execution import attach, execute
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.lifecycle import Why, all_containers
from virtfleet.local.node.podruns import described
from virtfleet.local.node.podworker import PodWorker
from virtfleet.local.node.portforward import forward
from virtfleet.local.node.runtime import Runtime

_POLL = 0.1  # seconds between looks at a log that somebody follows
_READ = 1 << 16
WINDOW = 1.0  # seconds over which the use of processors is measured


class AgentServer:
    """Serves what the API server asks of a node."""

    def __init__(self, layout: Layout, runtime: Runtime, workers: Mapping[str, PodWorker]) -> None:
        self._layout, self._runtime, self._workers = layout, runtime, workers

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        application = web.Application(middlewares=[_refusals])
        application.router.add_get("/log/{namespace}/{pod}/{container}", self._logs)
        application.router.add_get("/usage", self._usage)
        application.router.add_route("*", "/exec/{namespace}/{pod}/{container}", self._exec)
        application.router.add_route("*", "/attach/{namespace}/{pod}/{container}", self._attach)
        application.router.add_route("*", "/portforward/{namespace}/{pod}", self._port_forward)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        path = self._layout.socket
        path.unlink(missing_ok=True)
        await web.UnixSite(runner, str(path)).start()
        path.chmod(0o600)
        try:
            yield
        finally:
            await runner.cleanup()
            path.unlink(missing_ok=True)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query, run = request.query, self._run(request, previous=request.query.get("previous") == "true")
        since = times.seconds(query["sinceTime"]) if "sinceTime" in query else 0.0
        if "sinceSeconds" in query:
            since = time.time() - int(query["sinceSeconds"])
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        left = int(query.get("limitBytes", sys.maxsize))
        async for raw in _follow(run, query.get("tailLines"), follow=query.get("follow") == "true"):
            line = parse(raw)
            if line is None or (since and line.moment() < since):
                continue
            text = line.render(query.get("timestamps") == "true")[:left]
            await response.write(text)
            left -= len(text)
            if not left:
                break
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        return await execute(request, self._runtime, self._running(request))

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        run = self._running(request)
        stdin = described(self._worker(request).pod, run.name).get("stdin")
        return await attach(request, self._runtime.home(run), stdin=bool(stdin))

    async def _usage(self, request: web.Request) -> web.StreamResponse:
        """Measured now, because nobody measures while nobody asks."""
        groups = {
            (key_of(worker.pod), name): runs[-1].cgroup
            for worker in self._workers.values()
            for name, runs in worker.runs.by_name.items()
            if runs and runs[-1].running
        }
        groups["", ""] = self._layout.cgroup
        before, then = {which: cgroups.usage(group) for which, group in groups.items()}, time.monotonic()
        await asyncio.sleep(WINDOW)
        seconds = time.monotonic() - then
        pods: dict[str, dict[str, dict[str, int]]] = {}
        for (pod, name), group in groups.items():
            old, new = before[pod, name], cgroups.usage(group)
            if old and new:
                pods.setdefault(pod, {})[name] = {"cpu": max(int((new[0] - old[0]) / seconds), 0), "memory": new[1]}
        moment = {"timestamp": times.timestamp(), "window": f"{seconds:.3f}s"}
        return web.json_response({**moment, "node": pods.pop("", {}), "pods": pods})

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        worker, name = self._worker(request), request.match_info["pod"]
        if worker.network is None:
            raise ApiError("BadRequest", f"unable to forward port because pod {name} is not running")
        return await forward(request, worker.network, f"{name}, uid {worker.uid}")

    def _running(self, request: web.Request) -> Container:
        run = self._run(request)
        if not run.running:
            name = request.match_info["container"]
            raise ApiError("BadRequest", f"container {name!r} in pod {request.match_info['pod']!r} is not running")
        return run

    def _worker(self, request: web.Request) -> PodWorker:
        key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        worker = next((w for w in self._workers.values() if key_of(w.pod) == key), None)
        if worker is None:
            raise ApiError("NotFound", f'pod "{request.match_info["pod"]}" is not on this node')
        return worker

    def _run(self, request: web.Request, *, previous: bool = False) -> Container:
        """The run of the container that is asked for; refusals are worded as the kubelet's."""
        worker, pod, name = self._worker(request), request.match_info["pod"], request.match_info["container"]
        if name not in [container["name"] for container in all_containers(worker.pod)]:
            raise ApiError("BadRequest", f"container {name} is not valid for pod {pod}")
        runs = worker.runs.by_name.get(name) or []
        if previous:
            if len(runs) < 2 and not (runs and runs[-1].finished):
                raise ApiError("BadRequest", f'previous terminated container "{name}" in pod "{pod}" not found')
            return runs[-2:][0]
        if not runs:
            reason = worker.runs.waiting.get(name, Why("ContainerCreating")).reason
            raise ApiError("BadRequest", f'container "{name}" in pod "{pod}" is waiting to start: {reason}')
        return runs[-1]


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a log. A long line of the container's comes as several, all but the last of them partial."""

    stamp: bytes
    partial: bool
    text: bytes

    def moment(self) -> float:
        return times.seconds(self.stamp.decode())

    def render(self, timestamps: bool) -> bytes:
        end = b"" if self.partial else b"\n"
        return (self.stamp + b" " + self.text if timestamps else self.text) + end


def parse(raw: bytes) -> Line | None:
    """None for what is no entry, such as the torn line of a crash."""
    parts = raw.split(b" ", 3)
    if len(parts) != 4 or parts[2] not in (b"P", b"F"):
        return None
    return Line(parts[0], parts[2] == b"P", parts[3])


def last_lines(path: Path, count: int) -> tuple[list[bytes], int]:
    """The last `count` raw entries, and the size of the file."""
    try:
        with open(path, "rb") as file:
            return [line.rstrip(b"\n") for line in deque(file, count)], file.tell()
    except FileNotFoundError:  # the container has said nothing yet
        return [], 0


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.status(), status=error.code)


async def _follow(run: Container, tail: str | None, *, follow: bool) -> AsyncIterator[bytes]:
    """The raw entries of a container's log, of those that are there the last ones if a number is given.

    With `follow`, until the container has ended.
    """
    path, offset, rest, number = Path(run.log), 0, b"", 0
    if tail is not None:
        there_already, offset = await asyncio.to_thread(last_lines, path, int(tail))
        for line in there_already:
            yield line
    while True:
        ended = bool(run.finished)  # looked at before the file, so that nothing written before the end is missed
        with contextlib.suppress(FileNotFoundError), await asyncio.to_thread(open, path, "rb") as file:
            there = os.fstat(file.fileno())
            if number not in (0, there.st_ino) or there.st_size < offset:  # it was full, and is another one by now
                offset, rest = 0, b""
            number = there.st_ino
            file.seek(offset)
            while chunk := file.read(_READ):
                offset += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        if ended or not follow:
            return
        await asyncio.sleep(_POLL)
