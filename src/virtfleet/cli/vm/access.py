"""How commands reach a VM: through the cluster's aggregated API, as whoever the kubeconfig says."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import click
import orjson

from virtfleet.api.subresources import GROUP, PROTOCOL, VERSIONS, VMI
from virtfleet.cli.output import CommandError, F
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import VMIS, Obj

T = TypeVar("T")


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
class Cluster:
    """Which cluster, and where in it, as options say."""

    kubeconfig: Path | None
    namespace: str | None

    def default_namespace(self) -> str:
        try:
            return self.namespace or config.load(self.kubeconfig).namespace
        except ConfigError as error:
            raise _unknown_cluster(error) from None

    def do(self, name: str, work: Callable[[Reached], Awaitable[T]]) -> T:
        """What `work` does with a VM. What goes wrong is said with the next step."""

        async def reach() -> T:
            async with Client(config.load(self.kubeconfig)) as api:
                return await work(Reached(api, self.namespace or api.namespace, name))

        try:
            return asyncio.run(reach())
        except ConfigError as error:
            raise _unknown_cluster(error) from None
        except ApiError as error:
            raise _refused(error, name) from None


def _unknown_cluster(error: ConfigError) -> CommandError:
    return CommandError(str(error), "Name the cluster with --kubeconfig, or with KUBECONFIG.")


def _refused(error: ApiError, name: str) -> CommandError:
    """The server's own words, and what to do about it where they do not say."""
    stopped = f" A VM that is stopped has no VMI: virtfleet start {name}" if VMIS.kind.lower() in error.message else ""
    hints = {
        401: "The cluster does not know who you are; look at the kubeconfig.",
        403: "Ask whoever runs the cluster for the role kubevirt.io:edit in that namespace.",
        404: f"`kubectl get vm,vmi -A` lists what there is.{stopped}",
        503: "`kubectl get kubevirt -A` tells whether the installation is ready.",
    }
    return CommandError(error.message, hints.get(error.code, ""))


def cluster_options(function: F) -> F:
    """The `-n NAMESPACE` and `--kubeconfig FILE` of commands on VMs."""
    for option in (
        click.option("-n", "--namespace", help="The VM's namespace; that of the kubeconfig's context where left out."),
        click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="How to reach the cluster."),
    ):
        function = option(function)
    return function


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
