"""`python -m virtfleet.controller`: virt-controller, one of which leads."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from prometheus_client import REGISTRY

from virtfleet.controller.assembly import COMPONENT, VirtController
from virtfleet.controller.metrics import LEADING
from virtfleet.controller.monitoring import monitoring
from virtfleet.kube import config, process
from virtfleet.kube.client import Client
from virtfleet.kube.election import Election

PORT = 8443


async def control(options: argparse.Namespace) -> None:
    identity = os.environ.get("POD_NAME") or socket.gethostname()
    async with Client(config.load(options.kubeconfig)) as api, monitoring(options.listen, options.port):

        async def lead() -> None:
            controller = VirtController(api, identity)
            REGISTRY.register(controller.metrics)
            LEADING.set(1)
            await controller.run()

        await Election(api, namespace=api.namespace, name=COMPONENT, identity=identity).run(lead)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m virtfleet.controller", description=__doc__)
    parser.add_argument("--kubeconfig", help="how to reach the API server; in a pod, its service account")
    parser.add_argument("--listen", default="0.0.0.0", help="address of /healthz and /metrics")
    parser.add_argument("--port", type=int, default=PORT, help="port of /healthz and /metrics")
    parser.add_argument("--log-level", default="INFO")
    options = parser.parse_args()
    process.log_as_json(COMPONENT, options.log_level)
    return process.run(control(options))


if __name__ == "__main__":
    sys.exit(main())
