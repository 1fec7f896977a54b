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

import grpc

from virtfleet.kube.deviceplugin import (
    HEALTHY,
    KUBELET_SOCKET,
    PRETEND,
    VERSION,
    address,
    caller,
    channel,
    handler,
    message,
    variable,
)


class PretendPlugin:
    """One resource with `count` devices."""

    def __init__(self, directory: Path, resource: str, count: int) -> None:
        self._directory = directory
        self._resource = resource
        self._name = re.sub(r"[^a-z0-9]+", "-", resource.lower())
        self._ids = [f"{self._name}-{number}" for number in range(count)]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen and register; the agent whose directory this is must be listening already."""
        socket = f"pretend-{self._name}.sock"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler("DevicePlugin", self),))
        server.add_insecure_port(address(self._directory / socket))
        await server.start()
        try:
            async with channel(self._directory / KUBELET_SOCKET) as kubelet:
                request = message("RegisterRequest", version=VERSION, endpoint=socket, resource_name=self._resource)
                await caller(kubelet, "Registration", "Register")(request)
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
