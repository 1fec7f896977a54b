"""VirtFleet put into a cluster and taken out of it, whichever home: the operator's manifest, then a KubeVirt object.

All of it can be repeated. What is right already is not written, and what is gone already is not missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import virtfleet
from virtfleet.admission.review import review
from virtfleet.api import times
from virtfleet.api.kinds import KINDS
from virtfleet.api.names import APP_LABEL, FINAL
from virtfleet.cli.manifests import objects
from virtfleet.cli.output import CommandError, Progress, refused
from virtfleet.cli.reach import is_true
from virtfleet.installation import WAIT_FOR_VMS, Installation
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import (
    DAEMON_SETS,
    DEPLOYMENTS,
    KUBEVIRTS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    VMIS,
    Obj,
    of_kind,
)
from virtfleet.operator import manifest
from virtfleet.operator.apply import difference
from virtfleet.operator.handlerpods import IMAGE_TRIAL, RESTARTED
from virtfleet.operator.render import stamped
from virtfleet.operator.world import RESOURCES

LOOK = f"Look at: kubectl -n {manifest.NAMESPACE} get pods,events"
REMOVE_VMS = "RemoveWorkloads"
DEFAULT: Obj = {
    "apiVersion": KUBEVIRTS.api_version,
    "kind": KUBEVIRTS.kind,
    "metadata": {"name": "kubevirt", "namespace": manifest.NAMESPACE},
    "spec": {},
}
_KINDS = {**RESOURCES, **{kind.kind: kind for kind in (NAMESPACES, PRIORITY_CLASSES, KUBEVIRTS)}}
_WORKLOADS = [of_kind(kind) for kind in KINDS if kind.instance]
_SERVED_WITHIN = 30.0  # seconds that an API server may take to serve a new kind
_PAUSE = 0.5
_NAMED = 5
_OURS = "virtfleet"
_TROUBLES = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CrashLoopBackOff")
TRIAL = {
    "apiVersion": VMIS.api_version,
    "kind": VMIS.kind,
    "metadata": {"generateName": "ready-"},
    "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
}


def read(file: str) -> Obj:
    """The KubeVirt object in a file, checked as the cluster would."""
    kubevirts = [obj for obj in objects([file]) if obj["kind"] == KUBEVIRTS.kind]
    if len(kubevirts) != 1:
        raise CommandError(f"{file} has {len(kubevirts)} KubeVirt objects, not one")
    findings = review(kubevirts[0], Installation(kubevirts[0]))
    if not findings.allowed:
        raise refused(findings.causes, file)
    metadata = kubevirts[0].setdefault("metadata", {})
    metadata.setdefault("name", "kubevirt")
    if metadata.setdefault("namespace", manifest.NAMESPACE) != manifest.NAMESPACE:
        raise CommandError(f"{file}: the KubeVirt object has to be in the namespace {manifest.NAMESPACE}")
    return kubevirts[0]


async def install(api: KubeApi, kubevirt: Obj | None, progress: Progress, spec: Mapping[str, Any], new: Obj) -> None:
    """Write what is to be installed: a KubeVirt object, else the one that is there, else a `new` one; `spec` in any."""
    await _refuse_others(api)
    there = await installed(api)
    wanted = kubevirt or there or new
    wanted = {**wanted, "spec": {**(wanted.get("spec") or {}), **spec}}
    progress(f"installing VirtFleet {virtfleet.__version__}")
    for obj in manifest.objects(Installation(wanted)):
        await apply(api, obj)
    if kubevirt or not there:
        await apply(api, wanted)
    elif spec:
        await api.patch(KUBEVIRTS, there["metadata"]["name"], {"spec": spec}, manifest.NAMESPACE)


async def restart(api: KubeApi, progress: Progress, limit: float) -> None:
    """What `kubectl rollout restart` does, to every component; VMs run on."""
    progress("VirtFleet has changed: its components start anew")
    stamp = times.timestamp()
    template = {"metadata": {"annotations": {RESTARTED: stamp}}}
    for resource in (DEPLOYMENTS, DAEMON_SETS):
        for workload in await api.list(resource, manifest.NAMESPACE):
            await api.patch(
                resource, workload["metadata"]["name"], {"spec": {"template": template}}, manifest.NAMESPACE
            )

    async def why_old(api: KubeApi) -> str | None:
        metas = [pod["metadata"] for pod in await api.list(PODS, manifest.NAMESPACE)]
        old = [meta["name"] for meta in metas if (meta.get("annotations") or {}).get(RESTARTED) != stamp]
        return f"not replaced yet: {', '.join(sorted(old))}" if old else None

    await wait(api, why_old, progress, limit)


async def _refuse_others(api: KubeApi) -> None:
    """Somebody else's operator: both would want the same objects."""
    deployment = await _there(api.get(DEPLOYMENTS, manifest.VIRT_OPERATOR, manifest.NAMESPACE))
    if deployment and (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of") != _OURS:
        image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        raise CommandError(
            f"the cluster has a virt-operator that is not VirtFleet's ({image})",
            "Uninstall that first; VirtFleet serves the same kinds under the same names.",
        )


async def apply(api: KubeApi, obj: Obj) -> None:
    """Make an object, or bring one that is there to what is wanted."""
    wanted, resource = stamped(obj), _KINDS[obj["kind"]]
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    present = await _there(api.get(resource, name, namespace))
    if present is None:
        end = time.monotonic() + _SERVED_WITHIN
        while await _there(api.create(resource, wanted)) is None:  # its definition is new, and not served yet
            if time.monotonic() > end:
                raise CommandError(f"the API server does not serve {resource}", "Repeat the command.")
            await asyncio.sleep(_PAUSE)
    elif operations := difference(present, wanted):
        await api.patch(resource, name, operations, namespace, how=Patch.JSON)


async def installed(api: KubeApi) -> Obj | None:
    """The KubeVirt object of the cluster."""
    kubevirts = await _there(api.list(KUBEVIRTS, manifest.NAMESPACE))
    return kubevirts[0] if kubevirts else None


async def _there(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except ApiError as error:
        if is_not_found(error):
            return None
        raise


# What is waited for, in words.


async def why_not_ready(api: KubeApi) -> str | None:
    """What is missing until VMs can be made."""
    deployment = await _there(api.get(DEPLOYMENTS, manifest.VIRT_OPERATOR, manifest.NAMESPACE))
    kubevirt = await installed(api)
    if deployment is None or kubevirt is None:
        return "VirtFleet is not installed"
    pods = await api.list(PODS, manifest.NAMESPACE)
    reason = (
        why_not_rolled_out(deployment)
        or why_unavailable(kubevirt)
        or why_components_unready(pods)
        or await _why_not_admitting(api)
    )
    trouble = next((f" ({why})" for pod in pods if (why := _trouble(pod))), "")
    return f"{reason}{trouble}" if reason else None


def why_not_rolled_out(deployment: Obj) -> str | None:
    """Whether operators of before are still there, whose words are about their own version."""
    status, replicas = deployment.get("status") or {}, deployment["spec"]["replicas"]
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    there, new, ready = (status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas"))
    if current and there == new == ready == replicas:
        return None
    old = f", {there - new} of before end" if there > new else ""
    return f"{manifest.VIRT_OPERATOR} starts: {ready} of {replicas} are ready{old}"


def why_components_unready(pods: Sequence[Obj]) -> str | None:
    """Which Pods of the installation are not ready. What a node mounts may be found out later."""
    pods = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(APP_LABEL) != IMAGE_TRIAL]
    ready = {p["metadata"]["name"] for p in pods if is_true(p, "Ready") and not p["metadata"].get("deletionTimestamp")}
    alive = {p["metadata"]["name"] for p in pods if (p.get("status") or {}).get("phase") not in FINAL}
    unready = sorted(alive - ready)
    if not pods:
        return "virt-operator starts"
    return f"not ready yet: {', '.join(unready)}" if unready else None


def _trouble(pod: Obj) -> str:
    """What keeps a Pod's containers from starting, where it will not pass by itself."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting = [container.get("state", {}).get("waiting") or {} for container in containers]
    return next((w.get("message") or w["reason"] for w in waiting if w.get("reason") in _TROUBLES), "")


def why_unavailable(kubevirt: Obj) -> str | None:
    """What the operator says is missing."""
    status = kubevirt.get("status") or {}
    if status.get("observedGeneration") != kubevirt["metadata"].get("generation"):
        return "virt-operator starts"
    if is_true(kubevirt, "Available") and not is_true(kubevirt, "Progressing"):
        return None
    conditions = {c["type"]: c["message"] for c in status.get("conditions") or () if c["status"] == "True"}
    return str(conditions.get("Degraded") or conditions.get("Progressing") or "virt-operator starts")


async def _why_not_admitting(api: KubeApi) -> str | None:
    """Whether a VMI would be admitted, by asking for one without making it."""
    try:
        await api.create(VMIS, TRIAL, "default", dry_run=True)
    except ApiError as error:
        # A refusal is an answer too: this cluster may have its own policies.
        return f"VMs are not admitted yet: {error.message}" if error.code >= 500 else None
    return None


async def wait(api: KubeApi, why: Callable[[KubeApi], Awaitable[str | None]], progress: Progress, limit: float) -> None:
    """Until there is nothing left that `why` could say; what it says is told when it changes."""
    end = time.monotonic() + limit
    while reason := await why(api):
        progress.news(reason)
        if time.monotonic() > end:
            raise CommandError(f"after {limit:.0f} s: {reason}", f"{LOOK}\nRepeating the command goes on waiting.")
        await asyncio.sleep(_PAUSE)


# Taking it away.


async def workloads(api: KubeApi) -> list[str]:
    """VMs and what makes them, and VMIs, by name."""
    return [
        f"{resource.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
        for resource in _WORKLOADS
        for obj in await _there(api.list(resource)) or ()
    ]


async def uninstall(api: KubeApi, progress: Progress, *, force: bool) -> bool:
    """Begin to take VirtFleet away; False where there is no KubeVirt object. VMs go only where somebody said so."""
    kubevirt = await installed(api)
    if kubevirt is None:
        return False
    strategy = (kubevirt.get("spec") or {}).get("uninstallStrategy")
    vms = await workloads(api)
    if vms and not force and strategy != REMOVE_VMS:
        more = f" and {len(vms) - _NAMED} more" if len(vms) > _NAMED else ""
        raise CommandError(
            f"there are VMs, which would go with it: {', '.join(vms[:_NAMED])}{more}",
            "Delete them first, or repeat the command with --force: their disks in volumes stay.",
        )
    name = kubevirt["metadata"]["name"]
    if vms and strategy == WAIT_FOR_VMS:
        await api.patch(KUBEVIRTS, name, {"spec": {"uninstallStrategy": REMOVE_VMS}}, manifest.NAMESPACE)
    if not kubevirt["metadata"].get("deletionTimestamp"):
        await api.delete(KUBEVIRTS, name, manifest.NAMESPACE)
    progress(f"the operator takes VirtFleet away{f', {len(vms)} VMs and VMIs first' if vms else ''}")
    return True


async def why_still_there(api: KubeApi) -> str | None:
    """What is left of the installation, while the operator takes it away."""
    kubevirt = await installed(api)
    if kubevirt is None:
        return None
    if await _there(api.get(DEPLOYMENTS, manifest.VIRT_OPERATOR, manifest.NAMESPACE)) is None:
        raise CommandError(
            "there is a KubeVirt object, and no virt-operator that could take its installation away",
            "Repeat `virtfleet install`, then `virtfleet uninstall`.",
        )
    if left := await workloads(api):
        return f"{len(left)} VMs and VMIs end: {', '.join(left[:_NAMED])}"
    return "the components end" if await api.list(PODS, manifest.NAMESPACE) else "the operator cleans up"


async def remove_manifest(api: KubeApi) -> AsyncIterator[str]:
    """Delete the operator and what came with it; yields what was there."""
    for obj in reversed(manifest.objects()):
        resource, meta = _KINDS[obj["kind"]], obj["metadata"]
        if await _there(api.delete(resource, meta["name"], meta.get("namespace"))) is not None:
            yield f"{obj['kind']} {meta['name']}"


async def why_manifest_is_there(api: KubeApi) -> str | None:
    namespace = await _there(api.get(NAMESPACES, manifest.NAMESPACE))
    return f"the namespace {manifest.NAMESPACE} ends" if namespace else None
