"""Which device plugins run on this node: those of devices that it has and that VMs may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from virtfleet.handler.devices.host import Source
from virtfleet.handler.devices.plugin import LOOK, Plugin
from virtfleet.work import tasks

Sources = Callable[[], Iterable[Source]]


class Devices:
    """`sources` lists what should be offered now; `changed` is called when `ready` may have another answer."""

    def __init__(self, directory: Path, sources: Sources, changed: Callable[[], None], *, look: float = LOOK) -> None:
        self._directory = directory
        self._sources = sources
        self._changed = changed
        self._look = look
        self._plugins: dict[str, tuple[Plugin, asyncio.Task[None]]] = {}
        self._looked = False

    def ready(self) -> bool:
        """Whether the kubelet knows of every plugin that runs here."""
        return self._looked and all(plugin.registered for plugin, _ in self._plugins.values())

    async def run(self) -> None:
        """Start and stop plugins until cancelled."""
        try:
            while True:
                await self._adjust({source.resource: source for source in self._sources()})
                self._looked = True
                await asyncio.sleep(self._look)
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
                plugin = Plugin(self._directory, source, self._changed, look=self._look)
                self._plugins[resource] = plugin, tasks.keep(plugin.run, f"device plugin: {resource}")
