"""The health of one running container: its startup probe, then liveness and readiness."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.probes import Tally, probing
from virtfleet.local.node.runtime import Runtime
from virtfleet.work import tasks

log = logging.getLogger(__name__)


class Health:
    """`started`, `ready` and `unhealthy` are current; `wake` is called when one of them has changed.

    `known` is the status that an earlier agent wrote of this very run.
    """

    def __init__(
        self,
        runtime: Runtime,
        container: Obj,
        run: Container,
        address: str,
        wake: Callable[[], None],
        warn: Callable[[str, str], None],
        known: Obj | None = None,
    ) -> None:
        self._runtime, self._container, self._run, self._address = runtime, container, run, address
        self._wake, self._warn = wake, warn
        self.started = bool(known and known.get("started")) or not container.get("startupProbe")
        self.ready = bool(known and known.get("ready")) or (self.started and not container.get("readinessProbe"))
        self.unhealthy = ""
        self._task = tasks.keep(self._live, f"health: {run.name}")

    def stop(self) -> None:
        self._task.cancel()

    async def _live(self) -> None:
        if self._container.get("startupProbe") and not self.started:
            await self._probe("startup", until_success=True)
            if self.unhealthy:
                return
        self.started = True
        self.ready = self.ready or not self._container.get("readinessProbe")
        self._wake()
        async with asyncio.TaskGroup() as group:
            for kind in ("liveness", "readiness"):
                if self._container.get(f"{kind}Probe"):
                    group.create_task(self._probe(kind))

    async def _probe(self, kind: str, *, until_success: bool = False) -> None:
        probe = self._container[f"{kind}Probe"]
        count = Tally(probe.get("successThreshold") or 1, probe.get("failureThreshold") or 3)
        done = asyncio.Event()

        def answered(success: bool, message: str) -> None:
            if not success:
                self._warn("Unhealthy", f"{kind.capitalize()} probe failed: {message}")
            if not count.count(success):
                return
            if kind == "readiness":
                if self.ready != success:
                    self.ready = success
                    self._wake()
            elif not success:
                self.unhealthy = f"Container {self._run.name} failed {kind} probe, will be restarted"
                self._wake()
                done.set()
            elif until_success:
                done.set()

        execute = partial(self._runtime.run_in, self._run)
        asking = probing(probe, self._container, self._address, execute, answered)
        await tasks.first_of(asking, done.wait(), forgiven=())
