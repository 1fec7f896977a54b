"""A device plugin for devices that only a nodes file has: containers get their ids in a variable, and nothing else.

It speaks the same protocol as a real one, so that scheduling, allocation and pools can be tried without hardware. For a
VM that is given one, the handler reads the variable as it reads those of real devices, and QEMU emulates a PCI device
in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from virtfleet.kube.deviceplugin import HEALTHY, PRETEND, message, register, serve, variable


class PretendPlugin:
    """One resource with `count` devices."""

    def __init__(self, directory: Path, resource: str, count: int) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", resource.lower())
        self._socket, self._resource = directory / f"pretend-{name}.sock", resource
        self._ids = [f"{name}-{number}" for number in range(count)]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen and register; the agent whose directory this is must be listening already."""
        server = await serve("DevicePlugin", self, self._socket)
        try:
            await register(self._socket, self._resource)
            yield
        finally:
            await server.stop(None)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return message("DevicePluginOptions")  # without which no kubelet takes a plugin in

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        devices = [message("Device", ID=i, health=HEALTHY) for i in self._ids]
        yield message("ListAndWatchResponse", devices=devices)
        await asyncio.Event().wait()  # nothing ever changes

    async def Allocate(self, request: Any, context: Any) -> Any:
        name = variable(PRETEND, self._resource)
        answers = [
            message("ContainerAllocateResponse", envs={name: ",".join(wanted.devices_ids)})
            for wanted in request.container_requests
        ]
        return message("AllocateResponse", container_responses=answers)
