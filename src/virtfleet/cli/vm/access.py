"""How commands reach a VM: through the cluster's aggregated API, as whoever the kubeconfig says."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import click
import orjson

from virtfleet.api.subresources import GROUP, PROTOCOL, VERSIONS, VMI
from virtfleet.cli.reach import T, Where, cluster_options, with_cluster
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS, VMIS, Obj


@dataclass(frozen=True, slots=True)
class Reached:
    """A VM, and the API server that it is reached through."""

    api: Client
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    async def look(self) -> Obj:
        """The VMI as it is; an error where there is none."""
        return await self.api.get(VMIS, self.name, self.namespace)

    async def put(self, resource: str, subresource: str, body: Obj) -> None:
        await self.api.request("PUT", self._path(resource, subresource), body=orjson.dumps(body))

    async def screenshot(self) -> bytes:
        return await self.api.request("GET", self._path(VMI, "vnc/screenshot"))

    def stream(
        self, subresource: str, params: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        return self.api.websocket(self._path(VMI, subresource), params, (PROTOCOL,))

    def _path(self, resource: str, subresource: str) -> str:
        namespace, name = quote(self.namespace, safe=""), quote(self.name, safe="")
        return f"/apis/{GROUP}/{VERSIONS[0]}/namespaces/{namespace}/{resource}/{name}/{subresource}"


@dataclass(frozen=True, slots=True)
class Target:
    """Which VM of which cluster, as the command line says."""

    name: str
    namespace: str | None
    where: Where

    def do(self, work: Callable[[Reached], Awaitable[T]]) -> T:
        """What `work` does with the VM."""
        return with_cluster(lambda api: work(Reached(api, self.namespace or api.namespace, self.name)), self.where)


def target_options(function: Callable[..., Any], metavar: str = "NAME") -> Callable[..., Any]:
    """The NAME, `-n NAMESPACE`, `--kubeconfig FILE` and `--context NAME` of commands on a VM: its `target`."""

    @click.argument("name", metavar=metavar)
    @click.option("-n", "--namespace", help="The VM's namespace; that of the kubeconfig's context where left out.")
    @cluster_options
    @functools.wraps(function)
    def command(name: str, namespace: str | None, where: Where, **others: Any) -> None:
        function(Target(name, namespace, where), **others)

    return command


async def command_output(api: Client, namespace: str, pod: str, container: str, *command: str) -> str:
    """Standard output of a command in a container, whatever its exit code: what others need of `kubectl exec`."""
    query = urlencode([("container", container), ("stdout", "true"), *(("command", word) for word in command)])
    printed = bytearray()  # the first byte of a message says what it belongs to: 1 is standard output
    async with api.websocket(
        f"{PODS.path(namespace, pod, 'exec')}?{query}", protocols=["v4.channel.k8s.io"]
    ) as connection:
        async for message in connection:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x01":
                printed += message.data[1:]
    return printed.decode(errors="replace")


@asynccontextmanager
async def until_interrupted() -> AsyncIterator[asyncio.Event]:
    """An event that is set when somebody wants the command to end."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, interrupted.set)
    try:
        yield interrupted
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
