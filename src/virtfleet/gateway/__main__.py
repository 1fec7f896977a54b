"""`python -m virtfleet.gateway`: virt-api."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

import aiohttp

from virtfleet.gateway.evictions import Evictions
from virtfleet.gateway.frontproxy import FrontProxy
from virtfleet.gateway.handlers import Handlers
from virtfleet.gateway.instancetypes import TypedVms
from virtfleet.gateway.knowledge import Knowledge
from virtfleet.gateway.subresources import Subresources
from virtfleet.gateway.uploads import Uploads
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.kube import component, process
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.component import ADMISSION_KEY, EVICTION, MountedCredential
from virtfleet.kube.credentials import Material

NAME = "virt-api"


async def run(options: argparse.Namespace) -> None:
    """virt-api, for as long as it is not ended."""
    async with component.client(NAME, options) as api:
        await serve(options, api)


async def serve(options: argparse.Namespace, api: KubeApi) -> None:
    # Bodies pass through as they come, and any number of streams may be open at once.
    """Follow what answers depend on, and answer."""
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
        asyncio.TaskGroup() as group,
    ):
        knowledge = Knowledge(api)
        front_proxy = FrontProxy(api)
        credential = MountedCredential(options.certificates)
        handlers = Handlers(api, options.namespace, credential, session, options.handler_port)
        caches: list[Cache[Any]] = [*knowledge.caches, front_proxy.cache, handlers.pods]
        for cache in caches:
            group.create_task(cache.run())
        admission_key = Material(ADMISSION_KEY, options.certificates / ADMISSION_KEY)
        admission_key.read()  # without it there is nothing to serve
        # Who the front proxy is decides whose connections are taken at all.
        await front_proxy.cache.synced.wait()
        routes = [
            *Webhooks(knowledge, admission_key, TypedVms(api), {EVICTION: Evictions(api, knowledge).review}).routes(),
            *Subresources(api, front_proxy, handlers, knowledge).routes(),
            *Uploads(api, front_proxy, credential).routes(),
        ]

        def unready() -> str:
            return knowledge.missing() or handlers.missing()

        # Not one of the group's tasks: what it knows is kept up to date until its last answer.
        await component.serve(
            options,
            routes,
            unready,
            front_proxy.authorities,
            component.FAREWELL,
            knowledge.configuration,
            knowledge.tls,
        )


def main() -> int:
    """The process."""
    parser = component.arguments(NAME, "Admission webhooks and the subresource API.")
    parser.add_argument(
        "--namespace", default=os.environ.get("POD_NAMESPACE") or "kubevirt", help="that of the installation"
    )
    parser.add_argument("--handler-port", type=int, default=component.PORT, help="the port of virt-handlers")
    options = parser.parse_args()
    component.start_logging(NAME, options)
    return process.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
