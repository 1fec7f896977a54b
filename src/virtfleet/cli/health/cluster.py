"""Whether a cluster is well, as far as its API tells: components, nodes, pools, and VMs that do not get on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from virtfleet.api.names import FINAL, Phase
from virtfleet.cli.health.finding import Finding, fine, problem, warning
from virtfleet.cli.reach import is_true, oldest_kubevirt
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import NODES, PODS, VMI_MIGRATIONS, VMIS, VMS, Obj, Resource

_STUCK = timedelta(minutes=5)
_SHOWN = 20  # of one kind of trouble
_TROUBLED = ("CrashLoopBackOff", "ErrorUnschedulable", "ErrImagePull", "ImagePullBackOff", "ErrorPvcNotFound")


@dataclass(slots=True)
class Cluster:
    """One look at a cluster. What nobody may see, or does not exist, is in `unseen`, with why."""

    kubevirt: Obj | None = None
    objects: dict[str, list[Obj]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    def of(self, resource: Resource) -> list[Obj]:
        return self.objects.get(resource.plural, [])


async def look(api: Client) -> Cluster:
    cluster = Cluster()
    try:
        cluster.kubevirt = await oldest_kubevirt(api)
    except ApiError as error:
        if not is_not_found(error):
            raise
        return cluster

    async def ask(resource: Resource) -> None:
        try:
            cluster.objects[resource.plural] = await api.list(resource)
        except ApiError as error:
            cluster.unseen[resource.plural] = error.message

    await asyncio.gather(*map(ask, (NODES, PODS, VMS, VMIS, VMI_MIGRATIONS)))
    return cluster


def checks(cluster: Cluster, now: datetime) -> Iterator[Finding]:
    if cluster.kubevirt is None:
        yield problem("installation", "the cluster has no KubeVirt object", "Install VirtFleet: virtfleet install")
        return
    for plural, why in cluster.unseen.items():
        yield warning(plural, f"cannot be looked at: {why}")
    yield from _installation(cluster)
    yield from _nodes(cluster)
    yield from _pools(cluster)
    yield from _vms(cluster, now)
    yield from _migrations(cluster, now)


def _installation(cluster: Cluster) -> Iterator[Finding]:
    from virtfleet.cli.installing import LOOK, why_components_unready, why_unavailable

    assert cluster.kubevirt is not None
    namespace = cluster.kubevirt["metadata"]["namespace"]
    own = [pod for pod in cluster.of(PODS) if pod["metadata"]["namespace"] == namespace]
    if why := why_unavailable(cluster.kubevirt):
        yield problem("installation", why, LOOK)
    elif why := why_components_unready(own) if PODS.plural not in cluster.unseen else None:
        yield problem("components", why, f"{LOOK}\nTheir logs: virtfleet logs NAME")
    else:
        version = (cluster.kubevirt.get("status") or {}).get("observedKubeVirtVersion", "")
        yield fine("components", f"VirtFleet {version} is available; {len(own)} Pods")
    for pod in own:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            if status.get("restartCount", 0) >= 3:
                name = pod["metadata"]["name"]
                yield warning(
                    "components",
                    f"{name} was started again {status['restartCount']} times",
                    f"How it ended: virtfleet logs {name} --previous",
                )


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    nodes = cluster.of(NODES)
    for node in nodes:
        name = node["metadata"]["name"]
        if not is_true(node, "Ready"):
            yield problem("nodes", f"{name} is not ready", f"Look at: kubectl describe node {name}")
        elif (node.get("spec") or {}).get("unschedulable"):
            yield warning("nodes", f"{name} is cordoned: no VM can start there", f"Let it: kubectl uncordon {name}")
    if nodes and all(is_true(node, "Ready") for node in nodes):
        yield fine("nodes", f"{len(nodes)} are ready")


def _pools(cluster: Cluster) -> Iterator[Finding]:
    from virtfleet.api.names import APP_LABEL
    from virtfleet.cli.look.fleetview import FleetView
    from virtfleet.cli.look.poolreport import report

    assert cluster.kubevirt is not None
    handlers = [p for p in cluster.of(PODS) if (p["metadata"].get("labels") or {}).get(APP_LABEL) == "virt-handler"]
    live = not {NODES.plural, PODS.plural} & set(cluster.unseen)
    view = FleetView(cluster.kubevirt, cluster.of(NODES), handlers, cluster.of(VMIS), live=live)
    state = report(view)
    for trouble in state["problems"]:
        yield problem("pools", trouble, "Look at: virtfleet pools -o wide")
    for pool in state["pools"]:
        if pool["outdated"]:
            named = ", ".join(pool["outdated"][:_SHOWN])
            yield warning(
                "pools",
                f"{pool['outdatedVMIs']} VMs of {pool['name']} run with an image of before: {named}",
                "They get the new one when they are migrated or restarted.",
            )
    if not state["problems"]:
        yield fine("pools", f"{len(state['pools'])}, and no node without its handler")


def _vms(cluster: Cluster, now: datetime) -> Iterator[Finding]:
    stuck: dict[str, tuple[str, str]] = {}  # what is wrong with a VM, and what to do, by its name
    instances = {_key(vmi): vmi for vmi in cluster.of(VMIS)}
    for name, vmi in instances.items():
        phase, ends = (vmi.get("status") or {}).get("phase"), vmi["metadata"].get("deletionTimestamp")
        reasons = " ".join(f"{c.get('reason')} {c.get('message')}" for c in _conditions(vmi))
        if ends and now - _moment(ends) > _STUCK:
            stuck[name] = f"is to end since {ends}", f"Look at: kubectl describe vmi {_named(vmi)}"
        elif phase not in (*FINAL, Phase.RUNNING) and _old(vmi, now):
            stuck[name] = f"is {phase or 'not looked at'}{_because(vmi)}", f"Why: virtfleet explain {_named(vmi)}"
        elif is_true(vmi, "Paused") and "IOError" in reasons:
            wrong = f"stands still: its disk cannot be written{_because(vmi)}"
            stuck[name] = wrong, "Make room for its volumes; then it goes on."
    for vm in cluster.of(VMS):
        said = (vm.get("status") or {}).get("printableStatus", "")
        if said in _TROUBLED and _old(vm, now) and _key(vm) not in stuck:
            stuck[_key(vm)] = f"is {said}{_because(vm)}", f"Why: virtfleet explain {_named(vm)}"
    for name, (wrong, advice) in islice(stuck.items(), _SHOWN):
        yield problem("VMs", f"{name} {wrong}", advice)
    if len(stuck) > _SHOWN:
        yield problem("VMs", f"and {len(stuck) - _SHOWN} more do not get on", "List them with: kubectl get vmi -A")
    if not stuck:
        running = sum((vmi.get("status") or {}).get("phase") == Phase.RUNNING for vmi in instances.values())
        yield fine("VMs", f"{running} of {len(instances)} run, and none is stuck")


def _migrations(cluster: Cluster, now: datetime) -> Iterator[Finding]:
    for migration in cluster.of(VMI_MIGRATIONS):
        status = migration.get("status") or {}
        if status.get("phase") not in FINAL and _old(migration, now):
            yield warning(
                "migrations",
                f"{_key(migration)} of {migration['spec'].get('vmiName')} is {status.get('phase') or 'not looked at'}",
                f"Look at: kubectl describe vmim {_named(migration)}; deleting it lets the VM stay where it is.",
            )


def _key(obj: Obj) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _named(obj: Obj) -> str:
    return f"{obj['metadata']['name']} -n {obj['metadata']['namespace']}"


def _conditions(obj: Obj) -> list[Obj]:
    return (obj.get("status") or {}).get("conditions") or []


def _because(obj: Obj) -> str:
    """What its conditions say is wrong."""
    for condition in _conditions(obj):
        wrong = "True" if condition["type"] in ("Failure", "Paused") else "False"
        if condition["status"] == wrong and condition.get("message") and "Migratable" not in condition["type"]:
            return f": {condition['message']}"
    return ""


def _old(obj: Obj, now: datetime) -> bool:
    made = obj["metadata"].get("creationTimestamp")
    return bool(made) and now - _moment(made) > _STUCK


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
