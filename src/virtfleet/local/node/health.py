"""The health of one running container: its startup probe, then liveness and readiness."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.probes import ProbeFailure, Tally, attempt
from virtfleet.local.node.runtime import Runtime
from virtfleet.work import tasks


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
            await self._probe("startup")
            if self.unhealthy:
                return
        self.started = True
        self.ready = self.ready or not self._container.get("readinessProbe")
        self._wake()
        async with asyncio.TaskGroup() as group:
            for kind in ("liveness", "readiness"):
                if self._container.get(f"{kind}Probe"):
                    group.create_task(self._probe(kind))

    async def _probe(self, kind: str) -> None:
        """Ask as long as the answer can change anything."""
        probe = self._container[f"{kind}Probe"]
        tally = Tally(probe.get("successThreshold") or 1, probe.get("failureThreshold") or 3)
        await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
        while True:
            good = await self._succeeds(kind, probe)
            counts = tally.count(good)
            if counts and kind == "readiness" and self.ready != good:
                self.ready = good
                self._wake()
            elif counts and kind != "readiness" and not good:
                self.unhealthy = f"Container {self._run.name} failed {kind} probe, will be restarted"
                self._wake()
                return
            elif counts and kind == "startup":
                return
            # Many containers of one node begin at one moment; their probes need not stay in step.
            await asyncio.sleep((probe.get("periodSeconds") or 10) * random.uniform(0.95, 1.05))

    async def _succeeds(self, kind: str, probe: Obj) -> bool:
        try:
            await attempt(probe, self._container, self._address, partial(self._runtime.run_in, self._run))
        except ProbeFailure as failure:
            self._warn("Unhealthy", f"{kind.capitalize()} probe failed: {failure}")
            return False
        return True
