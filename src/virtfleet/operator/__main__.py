"""`python -m virtfleet.operator`: the virt-operator process. With `manifest`, print deploy/operator.yaml instead."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path

import virtfleet
from virtfleet.kube import config, process
from virtfleet.kube.api import KubeApi
from virtfleet.kube.client import Client
from virtfleet.kube.election import Election
from virtfleet.kube.events import Recorder
from virtfleet.operator import manifest
from virtfleet.operator.reconcile import Operator
from virtfleet.operator.world import World

NAME = manifest.VIRT_OPERATOR
# No VM waits for the operator, so the next one may take its time, and the API server is asked seldom.
LEASE_TIMES = {"lease_duration": 60.0, "renew_deadline": 40.0, "retry_period": 10.0}


async def lead(api: KubeApi, namespace: str) -> None:
    """Operate until cancelled. Only the leader watches: one that waits costs next to nothing."""
    world, recorder = World(api, namespace), Recorder(api, NAME)
    operator = Operator(api, world, recorder)
    async with asyncio.TaskGroup() as group:
        for part in (world, recorder, operator):
            group.create_task(part.run())


async def run(kubeconfig: Path | None) -> None:
    async with Client(config.load(kubeconfig), user_agent=f"{NAME}/{virtfleet.__version__}") as api:
        namespace = os.environ.get("POD_NAMESPACE", manifest.NAMESPACE)
        identity = os.environ.get("POD_NAME") or socket.gethostname()
        election = Election(api, namespace=namespace, name=NAME, identity=identity, **LEASE_TIMES)
        await election.run(lambda: lead(api, namespace))


def main() -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Installs and updates VirtFleet.")
    parser.add_argument("command", nargs="?", choices=["run", "manifest"], default="run", help="what to do [run]")
    parser.add_argument("--kubeconfig", type=Path, help="how to reach the API server; in a pod, its service account")
    options = parser.parse_args()
    if options.command == "manifest":
        sys.stdout.write(manifest.text())
        return 0
    process.log_as_json(NAME)
    return process.run(run(options.kubeconfig))


if __name__ == "__main__":
    sys.exit(main())
