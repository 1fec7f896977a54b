"""`python -m virtfleet.operator`: the virt-operator process. With `manifest`, print deploy/operator.yaml instead.

Several may run; one of them leads, the others wait. All of them answer probes and tell their metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from datetime import timedelta

from prometheus_client import Gauge

from virtfleet.kube import component, process
from virtfleet.kube.api import KubeApi
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.election import Election
from virtfleet.kube.events import Recorder
from virtfleet.operator import manifest
from virtfleet.operator.reconcile import Operator
from virtfleet.operator.world import World

NAME = manifest.VIRT_OPERATOR
# No VM waits for the operator, so the next one may take its time, and the API server is asked seldom.
LEASE_TIMES = {"lease_duration": 60.0, "renew_deadline": 40.0, "renew_period": 20.0, "retry_period": 5.0}
LEADING = Gauge("kubevirt_virt_operator_leading_status", "Whether this virt-operator leads")
_CERTIFICATE = Lifespan(timedelta(days=3650), timedelta(0))


async def lead(api: KubeApi, namespace: str) -> None:
    """Operate until cancelled. Only the leader watches: one that waits costs next to nothing."""
    world, recorder = World(api, namespace), Recorder(api, NAME)
    operator = Operator(api, world, recorder)
    async with asyncio.TaskGroup() as group:
        for part in (world, recorder, operator):
            group.create_task(part.run())


async def run(options: argparse.Namespace) -> None:
    namespace = os.environ.get("POD_NAMESPACE", manifest.NAMESPACE)
    async with component.client(NAME, options) as api:
        election = Election(api, namespace=namespace, name=NAME, identity=component.identity(), **LEASE_TIMES)
        LEADING.set_function(lambda: election.leading)
        # Before something is installed there is no authority, and for probes any certificate will do.
        own = Authority.create(NAME, _CERTIFICATE).issue(Profile(NAME, _CERTIFICATE, hosts=(NAME,)))
        mounted = component.MountedCredential(options.certificates, own)
        serving = component.serve(options, mounted=mounted, more_ports=[manifest.WEBHOOKS])
        await component.serve_and_lead(serving, election, lambda: lead(api, namespace))


def main() -> int:
    parser = component.arguments(NAME, "Installs and updates VirtFleet.")
    parser.add_argument("command", nargs="?", choices=["run", "manifest"], default="run", help="what to do [run]")
    options = parser.parse_args()
    if options.command == "manifest":
        sys.stdout.write(manifest.text())
        return 0
    component.start_logging(NAME, options)
    return process.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
