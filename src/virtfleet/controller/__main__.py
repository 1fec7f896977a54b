"""`python -m virtfleet.controller`: virt-controller. Several may run; one of them leads, the others wait."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys

from prometheus_client import REGISTRY

import virtfleet
from virtfleet.controller.assembly import COMPONENT, VirtController
from virtfleet.controller.metrics import LEADING
from virtfleet.kube import component, config, process
from virtfleet.kube.client import Client
from virtfleet.kube.election import Election


async def control(options: argparse.Namespace) -> None:
    identity = os.environ.get("POD_NAME") or socket.gethostname()
    async with (
        Client(config.load(options.kubeconfig), user_agent=f"{COMPONENT}/{virtfleet.__version__}") as api,
        asyncio.TaskGroup() as group,
    ):

        async def lead() -> None:
            controller = VirtController(api, identity)
            REGISTRY.register(controller.metrics)
            LEADING.set(1)
            await controller.run()

        serving = group.create_task(component.serve(options))
        await Election(api, namespace=api.namespace, name=COMPONENT, identity=identity).run(lead)
        serving.cancel()


def main() -> int:
    options = component.arguments(COMPONENT, __doc__ or "").parse_args()
    component.start_logging(COMPONENT, options)
    return process.run(control(options))


if __name__ == "__main__":
    sys.exit(main())
