"""`python -m virtfleet.operator`: the virt-operator process. With `manifest`, print deploy/operator.yaml instead."""

from __future__ import annotations

import asyncio
import os
import sys

from virtfleet.kube import config, process
from virtfleet.kube.api import KubeApi
from virtfleet.kube.client import Client
from virtfleet.kube.election import Election
from virtfleet.kube.events import Recorder
from virtfleet.operator import manifest
from virtfleet.operator.reconcile import Operator
from virtfleet.operator.world import World

LEASE = "virt-operator"
# No VM waits for the operator, so the next one may take its time, and the API server is asked seldom.
LEASE_TIMES = {"lease_duration": 60.0, "renew_deadline": 40.0, "retry_period": 10.0}


async def lead(api: KubeApi, namespace: str) -> None:
    """Operate until cancelled. Only the leader watches: one that waits costs next to nothing."""
    world, recorder = World(api, namespace), Recorder(api, manifest.VIRT_OPERATOR)
    operator = Operator(api, world, recorder)
    async with asyncio.TaskGroup() as group:
        for part in (world, recorder, operator):
            group.create_task(part.run())


async def run(namespace: str, identity: str) -> None:
    async with Client(config.load()) as api:
        election = Election(api, namespace=namespace, name=LEASE, identity=identity, **LEASE_TIMES)
        await election.run(lambda: lead(api, namespace))


def main() -> int:
    if sys.argv[1:] == ["manifest"]:
        sys.stdout.write(manifest.text())
        return 0
    process.log_as_json(manifest.VIRT_OPERATOR)
    namespace = os.environ.get("POD_NAMESPACE", manifest.NAMESPACE)
    return process.run(run(namespace, os.environ.get("POD_NAME") or os.uname().nodename))


if __name__ == "__main__":
    sys.exit(main())
