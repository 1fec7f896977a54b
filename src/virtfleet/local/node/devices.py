"""Devices of a node as the kubelet has them: plugins register, say what they have, and are asked to hand it out.

Plugins written for the kubelet's v1beta1 API work unchanged; virt-handler is one. What was handed out is written to a
checkpoint, because a plugin need not remember it and a restarted agent must not give a device away twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec

from virtfleet.api.quantity import Quantity
from virtfleet.kube.deviceplugin import HEALTHY, KUBELET_SOCKET, VERSION, caller, channel, message, serve
from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import write_atomically
from virtfleet.local.node.lifecycle import all_containers
from virtfleet.work import tasks

_CHECKPOINT = "virtfleet_checkpoint"
_CALL_TIMEOUT = 30.0
# Seconds in which a plugin registers again, after it or this agent was started anew. Until then no pod is refused: a VM
# would be lost for it, and who started both knows that they come back.
_RETURN = 10.0
_LOOK = 0.1
log = logging.getLogger(__name__)


class AdmissionRefused(Exception):
    """The pod asks for devices that this node cannot give: UnexpectedAdmissionError."""


class Allocation(msgspec.Struct, kw_only=True):
    """What one container got of one resource, in the plugin's words."""

    resource: str
    ids: list[str]
    envs: dict[str, str] = {}
    mounts: list[tuple[str, str, bool]] = []  # host path, container path, read-only
    devices: list[tuple[str, str, str]] = []  # host path, container path, permissions


Allocations = dict[str, dict[str, list[Allocation]]]  # pod -> container -> what it got


@dataclass(slots=True)
class Plugin:
    """A registered plugin. When its connection breaks its devices stay known, as unhealthy ones."""

    resource: str
    channel: grpc.aio.Channel
    health: dict[str, bool] = field(default_factory=dict)
    watching: asyncio.Task[None] | None = None


class Devices:
    """The device plugins of one node. `changed` is called when what the node can offer has changed."""

    def __init__(self, directory: Path, changed: Callable[[], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._plugins: dict[str, Plugin] = {}
        self._lock = asyncio.Lock()
        self._allocations: Allocations = {}
        self._complete = 0.0  # when plugins have had their time to come again

    async def start(self) -> grpc.aio.Server:
        """Listen for registrations. Sockets of before are removed: that is how plugins notice a new kubelet."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if path.is_socket():
                path.unlink()
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            content = (self._directory / _CHECKPOINT).read_bytes()
            self._allocations = msgspec.json.decode(content, type=Allocations)
        server = await serve("Registration", self, self._directory / KUBELET_SOCKET)
        self._complete = time.monotonic() + _RETURN
        return server

    async def stop(self) -> None:
        for plugin in self._plugins.values():
            await _close(plugin)

    def offers(self) -> dict[str, tuple[int, int]]:
        """Resource -> how many devices there are, and how many of them are healthy."""
        return {name: (len(p.health), sum(p.health.values())) for name, p in self._plugins.items()}

    async def Register(self, request: Any, context: Any) -> Any:
        """A plugin has come, or come again."""
        if request.version != VERSION:
            why = f"requested API version {request.version!r} is not supported"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        plugin = Plugin(request.resource_name, channel(self._directory / request.endpoint))
        try:
            asking = caller(plugin.channel, "DevicePlugin", "GetDevicePluginOptions")
            options = await asking(message("Empty"), timeout=_CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"failed to get device plugin options: {error.details()}")
        if options.pre_start_required:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this node makes no PreStartContainer calls")
        before = self._plugins.get(plugin.resource)
        self._plugins[plugin.resource] = plugin
        if before is not None:
            plugin.health = dict.fromkeys(before.health, False)
            await _close(before)
        plugin.watching = tasks.keep(partial(self._watch, plugin), f"devices: {plugin.resource}")
        log.info("device plugin for %s registered", plugin.resource)
        return message("Empty")

    async def _watch(self, plugin: Plugin) -> None:
        try:
            async for answer in caller(plugin.channel, "DevicePlugin", "ListAndWatch")(message("Empty")):
                plugin.health = {device.ID: device.health == HEALTHY for device in answer.devices}
                self._changed()
        except grpc.aio.AioRpcError as error:
            log.info("device plugin for %s is gone: %s", plugin.resource, error.details())
        self._lost(plugin)
        self._changed()

    def _lost(self, plugin: Plugin) -> None:
        """It has ended, and is waited for to come again."""
        plugin.health = dict.fromkeys(plugin.health, False)
        self._complete = time.monotonic() + _RETURN

    async def admit(self, pod: Obj) -> None:
        """Allot what the pod's containers ask for, unless that was done before."""
        uid = pod["metadata"]["uid"]
        if uid in self._allocations or not any(map(_wanted, all_containers(pod))):
            return
        async with self._lock:
            allotted: dict[str, list[Allocation]] = {}
            for container in all_containers(pod):
                for resource, count in _wanted(container).items():
                    got = await self._allot(resource, count, allotted)
                    allotted.setdefault(container["name"], []).append(got)
            self._allocations[uid] = allotted
            self._save()

    async def _allot(self, resource: str, count: int, before: dict[str, list[Allocation]]) -> Allocation:
        """`before` is what the pod has been allotted already."""
        lost = False
        while True:
            plugin, ids = self._plugins.get(resource), self._free(resource, before)[:count]
            if plugin and len(ids) == count:
                allocate = caller(plugin.channel, "DevicePlugin", "Allocate")
                request = message("ContainerAllocateRequest", devices_ids=ids)
                asked = message("AllocateRequest", container_requests=[request])
                try:
                    answer = await allocate(asked, timeout=_CALL_TIMEOUT)
                    break
                except grpc.aio.AioRpcError as error:
                    if lost or error.code() is not grpc.StatusCode.UNAVAILABLE:
                        said = f"Allocate failed due to rpc error: {error.details()}, which is unexpected"
                        raise AdmissionRefused(said) from None
                    lost = True  # it is asked again once it is back
                    self._lost(plugin)
            elif time.monotonic() > self._complete:
                why = f"requested number of devices unavailable for {resource}"
                counts = f"Requested: {count}, Available: {len(ids)}, which is unexpected"
                missing = f"{why}. {counts}" if plugin else f"no device plugin for {resource} on this node"
                raise AdmissionRefused(f"Allocate failed due to {missing}")
            await asyncio.sleep(_LOOK)
        if len(answer.container_responses) != 1:
            raise AdmissionRefused(f"Allocate failed: the plugin for {resource} answered for no container")
        given = answer.container_responses[0]
        return Allocation(
            resource=resource,
            ids=ids,
            envs=dict(given.envs),
            mounts=[(m.host_path, m.container_path, m.read_only) for m in given.mounts],
            devices=[(d.host_path, d.container_path, d.permissions or "rwm") for d in given.devices],
        )

    def _free(self, resource: str, before: dict[str, list[Allocation]]) -> list[str]:
        """Healthy devices that nobody has."""
        plugin, pods = self._plugins.get(resource), [*self._allocations.values(), before]
        taken = {i for pod in pods for got in pod.values() for a in got if a.resource == resource for i in a.ids}
        return [i for i, healthy in sorted(plugin.health.items()) if healthy and i not in taken] if plugin else []

    def of(self, uid: str, container: str) -> list[Allocation]:
        return self._allocations.get(uid, {}).get(container, [])

    def release(self, uid: str) -> None:
        if self._allocations.pop(uid, None) is not None:
            self._save()

    def keep_only(self, uids: set[str]) -> None:
        for uid in self._allocations.keys() - uids:
            self.release(uid)

    def _save(self) -> None:
        write_atomically(self._directory / _CHECKPOINT, msgspec.json.encode(self._allocations))


async def _close(plugin: Plugin) -> None:
    if plugin.watching is not None:
        plugin.watching.cancel()
        await asyncio.gather(plugin.watching, return_exceptions=True)
    await plugin.channel.close()


def _wanted(container: Obj) -> dict[str, int]:
    """Extended resources that a container asks for; hugepages and the like have no plugin."""
    limits = (container.get("resources") or {}).get("limits") or {}
    extended = [name for name in limits if "/" in name and not name.partition("/")[0].endswith("kubernetes.io")]
    return {name: count for name in sorted(extended) if (count := Quantity.parse(limits[name]).value())}
