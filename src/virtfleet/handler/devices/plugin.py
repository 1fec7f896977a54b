"""A device plugin for each resource of the node that VMs may use: says what there is of it, hands it out.

The kubelet forgets plugins when it restarts, and removes their sockets; that, and devices that come and go, is noticed
by looking every other second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from virtfleet.api import names
from virtfleet.handler.devices.host import Source, Unit, Units
from virtfleet.kube.deviceplugin import HEALTHY, KUBELET_SOCKET, UNHEALTHY, message, register, serve
from virtfleet.work import tasks
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

LOOK = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


class Plugin:
    """`run()` it as a task. `registered`: whether the kubelet knows of it; `changed` is called when that changes."""

    def __init__(self, directory: Path, source: Source, changed: Callable[[], None]) -> None:
        self.source = source
        self.registered = False
        self._kubelet = directory / KUBELET_SOCKET
        self._name = source.resource.removeprefix(names.DEVICE_PREFIX).replace("/", "-")
        self._socket = directory / f"kubevirt-{self._name}.sock"
        self._changed = changed
        self._units: Units = {}
        self._news = asyncio.Event()  # a new one after each change

    async def run(self) -> None:
        """Serve until cancelled. After a failure the pauses grow; a kubelet that restarted is no failure."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                await self._serve()
                backoff.reset()
            except (grpc.aio.AioRpcError, OSError, RuntimeError, TimeoutError) as error:
                pause = backoff.next()
                logger.warning("device plugin %s: %s; again in %.0f s", self.source.resource, _words(error), pause)
                await asyncio.sleep(pause)

    async def _serve(self) -> None:
        """Listen, register, and look after the devices until the kubelet wants to be told anew."""
        self._units = self.source.units()
        self._socket.unlink(missing_ok=True)
        server = await serve("DevicePlugin", self, self._socket)
        try:
            kubelet = _identity(self._kubelet)
            await register(self._socket, self.source.resource)
            logger.info("device plugin %s: registered", self.source.resource)
            self._set_registered(True)
            while self._socket.exists() and _identity(self._kubelet) == kubelet:
                await asyncio.sleep(LOOK)
                units = self.source.units()
                if units != self._units:
                    self._units, news, self._news = units, self._news, asyncio.Event()
                    news.set()
            if self._socket.exists():
                logger.info("device plugin %s: the kubelet has restarted", self.source.resource)
            else:  # in KubeVirt's words
                logger.warning("device socket file for device %s was removed, kubelet probably restarted.", self._name)
        finally:
            self._set_registered(False)
            await server.stop(None)
            self._socket.unlink(missing_ok=True)

    def _set_registered(self, registered: bool) -> None:
        if registered != self.registered:
            self.registered = registered
            self._changed()

    # The kubelet's calls, by the names of its API.

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return message("DevicePluginOptions")

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            news = self._news
            yield message("ListAndWatchResponse", devices=[_device(name, unit) for name, unit in self._units.items()])
            await news.wait()

    async def Allocate(self, request: Any, context: Any) -> Any:
        answers = []
        for wanted in request.container_requests:
            units = [self._units.get(name) for name in wanted.devices_ids]
            present = [unit for unit in units if unit is not None and unit.healthy]
            if len(present) != len(units):
                missing = ", ".join(name for name, unit in zip(wanted.devices_ids, units, strict=True) if not unit)
                await context.abort(
                    grpc.StatusCode.NOT_FOUND, f"{self.source.resource}: no working device {missing or 'any more'}"
                )
            answers.append(self._allocation(present))
        return message("AllocateResponse", container_responses=answers)

    def _allocation(self, units: list[Unit]) -> Any:
        nodes = dict.fromkeys(node for unit in units for node in unit.nodes)
        specs = [message("DeviceSpec", host_path=node, container_path=node, permissions="mrw") for node in nodes]
        addresses = ",".join(unit.address for unit in units)
        envs = {self.source.variable: addresses} if self.source.variable else {}
        return message("ContainerAllocateResponse", devices=specs, envs=envs)


def _device(name: str, unit: Unit) -> Any:
    topology = {}
    if unit.numa is not None:
        topology["topology"] = message("TopologyInfo", nodes=[message("NUMANode", ID=unit.numa)])
    return message("Device", ID=name, health=HEALTHY if unit.healthy else UNHEALTHY, **topology)


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _words(error: BaseException) -> str:
    return error.details() or "" if isinstance(error, grpc.aio.AioRpcError) else str(error) or type(error).__name__


@dataclass
class Devices:
    """`sources` lists what should be offered now; `changed` is called when `ready` may have another answer."""

    directory: Path
    sources: Callable[[], Iterable[Source]]
    changed: Callable[[], None]
    _plugins: dict[str, tuple[Plugin, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    _looked: bool = field(default=False, init=False)

    def ready(self) -> bool:
        """Whether the kubelet knows of every plugin that runs here."""
        return self._looked and all(plugin.registered for plugin, _ in self._plugins.values())

    async def run(self) -> None:
        """Start and stop plugins until cancelled."""
        try:
            while True:
                await self._adjust({source.resource: source for source in self.sources()})
                self._looked = True
                await asyncio.sleep(LOOK)
        finally:
            await self._adjust({})

    async def _adjust(self, wanted: dict[str, Source]) -> None:
        for resource in [r for r in self._plugins if r not in wanted]:
            _, task = self._plugins.pop(resource)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for resource, source in wanted.items():
            if resource in self._plugins:
                self._plugins[resource][0].source = source
            else:
                plugin = Plugin(self.directory, source, self.changed)
                self._plugins[resource] = plugin, tasks.keep(plugin.run, f"device plugin: {resource}")
