"""The containers of one pod over time: their runs, why those that do not run wait, and the health of those that do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar
from virtfleet.local.node.assembly import NodeParts, termination_path
from virtfleet.local.node.containers import Container
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.lifecycle import Seen, Why, all_containers, init_containers
from virtfleet.local.node.probes import Health, Tell, Wake

_MESSAGE_LIMIT = 4096


def described(pod: Obj, name: str) -> Obj:
    """A container of the pod as its spec has it."""
    return next(container for container in all_containers(pod) if container["name"] == name)


class PodRuns:
    """`wake` is called when a container's health has changed; `warn` and `say` record events."""

    def __init__(self, node: NodeParts, wake: Wake, say: Tell, warn: Tell, adopted: Iterable[Container]) -> None:
        self._node, self._wake, self._say, self._warn = node, wake, say, warn
        self.by_name: dict[str, list[Container]] = {}  # the latest last
        self.waiting: dict[str, Why] = {}
        self._health: dict[str, Health] = {}
        for run in sorted(adopted, key=lambda r: r.attempt):
            self.by_name.setdefault(run.name, []).append(run)

    def latest(self, name: str) -> Container | None:
        runs = self.by_name.get(name)
        return runs[-1] if runs else None

    def any_running(self) -> bool:
        return any(run.running for runs in self.by_name.values() for run in runs)

    def seen(self, pod: Obj) -> dict[str, Seen]:
        seen = {}
        for container in all_containers(pod):
            name = container["name"]
            runs, run = self.by_name.get(name) or [], self.latest(name)
            health = self._health.get(name) if run and run.running else None
            seen[name] = Seen(
                run=run,
                previous=runs[-2] if len(runs) > 1 else None,
                started=bool(health and health.started),
                ready=bool(health and health.ready),
                waiting=self.waiting.get(name),
                unhealthy=health.unhealthy if health else "",
            )
        return seen

    async def add(self, run: Container) -> None:
        """A new run. The one before it is kept, for its exit code and its log."""
        self.waiting.pop(run.name, None)
        runs = self.by_name.setdefault(run.name, [])
        runs.append(run)
        while len(runs) > 2:
            old = runs.pop(0)
            await self._node.runtime.remove(old)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old.log)

    async def take_in_ends(self) -> None:
        """Note why containers ended, and free what they held. No end is published or acted upon before."""
        while ended := [run for runs in self.by_name.values() for run in runs if run.finished and not run.retired]:
            for run in ended:
                self._stop_probing(run.name)
                if not run.message:
                    run.message = _last_words(self._node.layout, run)
                await self._node.runtime.retire(run)

    async def remove_all(self) -> None:
        for runs in self.by_name.values():
            for run in runs:
                await self._node.runtime.remove(run)

    # Health.

    def adopt_health(self, pod: Obj, address: str) -> None:
        """Go on probing the containers that an earlier agent started, from where it was."""
        known = {
            entry["containerID"].rpartition("/")[2]: entry
            for key in ("containerStatuses", "initContainerStatuses")
            for entry in (pod.get("status") or {}).get(key) or ()
            if entry.get("containerID")
        }
        for name, runs in self.by_name.items():
            if runs[-1].running and name not in self._health:
                self.begin_probing(described(pod, name), runs[-1], address, known.get(runs[-1].id, {}))

    def begin_probing(self, container: Obj, run: Container, address: str, known: Obj | None = None) -> None:
        parts = (self._node.runtime, container, run, address, self._wake, self._warn)
        self._health[run.name] = Health(*parts, known or {})

    def stop_all_probing(self) -> None:
        for name in list(self._health):
            self._stop_probing(name)

    def _stop_probing(self, name: str) -> None:
        if health := self._health.pop(name, None):
            health.stop()

    # Ending.

    async def end(self, name: str, grace: float, reason: str) -> None:
        """End one container that is to be run again."""
        run = self.latest(name)
        if run is not None and not run.finished:
            self._say("Killing", reason)
            await self._stop(run, grace)

    async def end_all(self, pod: Obj, grace: float) -> None:
        """Sidecars after the others, the last one first, in what is left of the time."""
        until, last = time.monotonic() + grace, [c["name"] for c in init_containers(pod) if is_sidecar(c)]
        for names in ([name for name in self.by_name if name not in last], *([name] for name in reversed(last))):
            running = [run for name in names if (run := self.latest(name)) and not run.finished]
            for run in running:
                self._say("Killing", f"Stopping container {run.name}")
            left = max(until - time.monotonic(), min(grace, 1.0))
            await asyncio.gather(*(self._stop(run, left) for run in running))

    def kill_all(self) -> None:
        """No more grace for anyone."""
        for runs in self.by_name.values():
            if not runs[-1].finished:
                self._node.runtime.kill(runs[-1], signal.SIGKILL)

    async def _stop(self, run: Container, grace: float) -> None:
        self._stop_probing(run.name)
        await self._node.runtime.stop(run, grace)


def _last_words(layout: Layout, run: Container) -> str:
    """What the container wrote to its file."""
    with contextlib.suppress(OSError), open(termination_path(layout, run), "rb") as file:
        return file.read(_MESSAGE_LIMIT).decode(errors="replace")
    return ""
