"""The node's sign of life: a label that lets VMs be scheduled here, and an annotation that says since when that holds.

A node whose handler starts or stops takes no new VMs. The controller treats a node whose sign is five minutes old as
lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

import virtfleet
from virtfleet.api import names, times
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import NODES, Obj
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

PERIOD = (60.0, 132.0)  # seconds; spread, so that a thousand nodes do not speak at once
PATIENCE = 10.0  # seconds for the device plugins to come up before the node says that they did not
_FAREWELL = 5.0


def sign(schedulable: bool, static_cpus: bool, now: float) -> Obj:
    """The merge patch of the Node."""
    return {
        "metadata": {
            "labels": {
                names.SCHEDULABLE: str(schedulable).lower(),
                names.CPU_MANAGER: str(static_cpus).lower(),
                names.DEPRECATED_CPU_MANAGER: str(static_cpus).lower(),
            },
            "annotations": {
                names.HANDLER_HEARTBEAT: times.timestamp(now),
                names.HANDLER_VERSION: virtfleet.__version__,
            },
        }
    }


def not_schedulable() -> Obj:
    """The merge patch of a Node whose handler comes or goes."""
    return {"metadata": {"labels": {names.SCHEDULABLE: "false"}}}


def static_cpus(state: Path) -> bool:
    """Whether the kubelet gives Pods CPUs of their own, by its checkpoint."""
    with suppress(OSError, orjson.JSONDecodeError):
        return bool(orjson.loads(state.read_bytes()).get("policyName") == "static")
    return False


@dataclass
class Heartbeat:
    """`ready` says whether this node can run VMs; `changed` may be called whenever its answer is a new one."""

    api: KubeApi
    node: str
    ready: Callable[[], bool]
    cpu_manager_state: Path
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def changed(self) -> None:
        self._news.set()

    async def run(self) -> None:
        """Give signs of life until cancelled; the last one says that no VM shall come."""
        await self._write(not_schedulable())
        try:
            deadline = time.monotonic() + PATIENCE
            while not self.ready() and (left := deadline - time.monotonic()) > 0:
                self._news.clear()
                await self._wait(left)
            while True:
                self._news.clear()
                await self._write(sign(self.ready(), static_cpus(self.cpu_manager_state), time.time()))
                await self._wait(random.uniform(*PERIOD))
        finally:
            await self._say_goodbye()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _write(self, patch: Obj) -> None:
        backoff = Backoff(0.5, 15.0)
        while True:
            try:
                await self.api.patch(NODES, self.node, patch)
                return
            except ApiError as error:
                logger.warning("the sign of life was not taken: %s", error.message)
                await asyncio.sleep(backoff.next())

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL):
                await self.api.patch(NODES, self.node, not_schedulable())
        except (ApiError, TimeoutError) as error:
            logger.warning("the node could not be marked unschedulable: %s", error)
