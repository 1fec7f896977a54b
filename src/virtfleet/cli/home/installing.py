"""How `virtfleet up` installs VirtFleet into the local cluster: as anybody would into any other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from virtfleet.api import times
from virtfleet.cli import installing
from virtfleet.cli.output import CommandError, Progress
from virtfleet.kube.api import KubeApi
from virtfleet.kube.client import Client
from virtfleet.kube.resource import DAEMON_SETS, DEPLOYMENTS, PODS, Obj
from virtfleet.local import stock
from virtfleet.operator.handlerpods import RESTARTED
from virtfleet.operator.manifest import NAMESPACE

DEADLINE = 300.0
_PAUSE = 0.2
# Where KVM does not work, CPUs are emulated: a machine to try things on may well be a VM itself.
_NEW = {**installing.DEFAULT, "spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}}}


async def install(api: Client, data: Path, kubevirt: Obj | None, progress: Progress, *, restart: bool) -> None:
    """Install or update. Without a KubeVirt object, one that is there stays as it is.

    With `restart` the components run an older VirtFleet under the same name, and are to be started anew.
    """
    await installing.install(api, kubevirt, progress, {}, _NEW)
    # The operator is on its way meanwhile.
    await stock.fill(data / "images", progress)
    if restart:
        await _restart(api, progress)


async def _restart(api: KubeApi, progress: Progress) -> None:
    """What `kubectl rollout restart` does, to every component; VMs run on."""
    progress("VirtFleet has changed: its components start anew")
    stamp = times.timestamp()
    template = {"metadata": {"annotations": {RESTARTED: stamp}}}
    for resource in (DEPLOYMENTS, DAEMON_SETS):
        for workload in await api.list(resource, NAMESPACE):
            name = workload["metadata"]["name"]
            await api.patch(resource, name, {"spec": {"template": template}}, NAMESPACE)
    end = time.monotonic() + DEADLINE
    while old := [p for p in await api.list(PODS, NAMESPACE) if not _made_at(p, stamp)]:
        if time.monotonic() > end:
            raise CommandError(f"{old[0]['metadata']['name']} is not replaced after {DEADLINE:.0f} s", installing.LOOK)
        await asyncio.sleep(_PAUSE)


def _made_at(pod: Obj, stamp: str) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(RESTARTED) == stamp
