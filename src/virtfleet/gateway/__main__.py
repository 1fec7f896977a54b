"""`python -m virtfleet.gateway`: virt-api."""

from __future__ import annotations

import argparse
import asyncio
import sys

import virtfleet
from virtfleet.gateway.knowledge import CachedKnowledge
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.kube import component, config, process
from virtfleet.kube.client import Client

NAME = "virt-api"


async def run(options: argparse.Namespace) -> None:
    async with (
        Client(config.load(options.kubeconfig), user_agent=f"{NAME}/{virtfleet.__version__}") as api,
        asyncio.TaskGroup() as group,
    ):
        knowledge = CachedKnowledge(api)
        for cache in knowledge.caches:
            group.create_task(cache.run())
        group.create_task(component.serve(options, Webhooks(knowledge).routes(), knowledge.missing))


def main() -> int:
    options = component.arguments(NAME, "Admission webhooks.").parse_args()
    component.log_as_told(NAME, options)
    return process.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
