"""`python -m virtfleet.gateway`: virt-api."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import virtfleet
from virtfleet.gateway.knowledge import CachedKnowledge
from virtfleet.gateway.server import serve
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.kube import config, process
from virtfleet.kube.client import Client


async def run(kubeconfig: Path | None, certificates: Path, port: int) -> None:
    async with (
        Client(config.load(kubeconfig), user_agent=f"virt-api/{virtfleet.__version__}") as api,
        asyncio.TaskGroup() as group,
    ):
        knowledge = CachedKnowledge(api)
        for cache in knowledge.caches:
            group.create_task(cache.run())
        group.create_task(serve(Webhooks(knowledge).routes(), certificates, port, knowledge.missing))


def main() -> int:
    parser = argparse.ArgumentParser(prog="virt-api", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, help="how to reach the API server; the service account by default")
    parser.add_argument("--certificates", type=Path, default=Path("/etc/virtfleet/certificates"))
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--verbosity", type=int, default=2, help="above 2: debug messages too")
    options = parser.parse_args()
    process.log_as_json("virt-api", "DEBUG" if options.verbosity > 2 else "INFO")
    return process.run(run(options.kubeconfig, options.certificates, options.port))


if __name__ == "__main__":
    sys.exit(main())
