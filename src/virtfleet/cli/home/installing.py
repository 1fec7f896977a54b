"""How `virtfleet up` installs VirtFleet into the local cluster: as anybody would into any other.

The operator's manifest (deploy/operator.yaml is the same) and a KubeVirt object. It can be repeated: what is right
already is not written.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

from virtfleet.admission.review import review
from virtfleet.cli.manifests import objects
from virtfleet.cli.output import CommandError, Progress, refused
from virtfleet.installation import Installation
from virtfleet.kube import config
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import DAEMON_SETS, DEPLOYMENTS, KUBEVIRTS, NAMESPACES, PODS, PRIORITY_CLASSES, Obj
from virtfleet.local import stock
from virtfleet.operator import manifest
from virtfleet.operator.apply import difference
from virtfleet.operator.handlerpods import RESTARTED
from virtfleet.operator.render import stamped
from virtfleet.operator.world import RESOURCES

DEADLINE = 300.0
_PAUSE = 0.2
_LOOK = f"Look at: kubectl -n {manifest.NAMESPACE} get pods,events"
_KINDS = {**RESOURCES, **{kind.kind: kind for kind in (NAMESPACES, PRIORITY_CLASSES, KUBEVIRTS)}}
# Where KVM does not work, CPUs are emulated: a machine to try things on may well be a VM itself.
_DEFAULT = {
    "apiVersion": KUBEVIRTS.api_version,
    "kind": KUBEVIRTS.kind,
    "metadata": {"name": "kubevirt", "namespace": manifest.NAMESPACE},
    "spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}},
}


def read(file: str) -> Obj:
    """The KubeVirt object in a file, checked as the cluster would."""
    kubevirts = [obj for obj in objects([file]) if obj["kind"] == KUBEVIRTS.kind]
    if len(kubevirts) != 1:
        raise CommandError(f"{file} has {len(kubevirts)} KubeVirt objects, not one")
    findings = review(kubevirts[0], Installation(kubevirts[0]))
    if not findings.allowed:
        raise refused(findings.causes, file)
    return kubevirts[0]


async def install(data: Path, kubevirt: Obj | None, progress: Progress, *, restart: bool) -> None:
    """Install or update. Without a KubeVirt object, one that is there stays as it is.

    With `restart` the components run an older VirtFleet under the same name, and are to be started anew.
    """
    async with Client(config.load(data / "kubeconfig")) as api:
        progress("installing VirtFleet")
        for obj in manifest.objects():
            await _apply(api, obj)
        if kubevirt is not None:
            await _apply(api, kubevirt)
        elif not await api.list(KUBEVIRTS):
            await _apply(api, _DEFAULT)
        # The operator is on its way meanwhile.
        await stock.fill(data / "images", progress)
        if restart:
            await _restart(api, progress)


async def _apply(api: KubeApi, obj: Obj) -> None:
    """Make an object, or bring one that is there to what is wanted."""
    wanted, resource = stamped(obj), _KINDS[obj["kind"]]
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    try:
        installed = await api.get(resource, name, namespace)
    except ApiError as error:
        if not is_not_found(error):
            raise
        await api.create(resource, wanted)
        return
    if operations := difference(installed, wanted):
        await api.patch(resource, name, operations, namespace, how=Patch.JSON)


async def _restart(api: KubeApi, progress: Progress) -> None:
    """What `kubectl rollout restart` does, to every component; VMs run on."""
    progress("VirtFleet has changed: its components start anew")
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    template = {"metadata": {"annotations": {RESTARTED: stamp}}}
    for resource in (DEPLOYMENTS, DAEMON_SETS):
        for workload in await api.list(resource, manifest.NAMESPACE):
            name = workload["metadata"]["name"]
            await api.patch(resource, name, {"spec": {"template": template}}, manifest.NAMESPACE)
    end = time.monotonic() + DEADLINE
    while old := [p for p in await api.list(PODS, manifest.NAMESPACE) if not _made_at(p, stamp)]:
        if time.monotonic() > end:
            raise CommandError(f"{old[0]['metadata']['name']} is not replaced after {DEADLINE:.0f} s", _LOOK)
        await asyncio.sleep(_PAUSE)


def _made_at(pod: Obj, stamp: str) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(RESTARTED) == stamp
