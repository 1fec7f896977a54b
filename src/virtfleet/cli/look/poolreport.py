"""The state of every pool, and what is wrong with them, from one look at a fleet. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import orjson

from virtfleet.api import names
from virtfleet.api.names import FINAL
from virtfleet.cli.look.fleetview import FleetView
from virtfleet.installation import Installation
from virtfleet.operator.conditions import DEGRADED
from virtfleet.operator.handlerpods import HandlerPod, decode_pod
from virtfleet.operator.rollout import CANARY_FAILED, IMAGE_UNPROVEN
from virtfleet.pools.model import Pool, owner
from virtfleet.pools.overlap import overlaps, shadowed, shared_devices

PRIMARY = "(primary)"
STOPPED = (CANARY_FAILED, IMAGE_UNPROVEN)


def report(view: FleetView) -> dict[str, Any]:
    """Pools in their order, then the nodes that are in none; and problems in words."""
    installation = Installation(view.kubevirt)
    pools = installation.fleet.pools
    pods = [pod for pod in (decode_pod(orjson.dumps(each)) for each in view.pods) if not pod.stand_in]
    nodes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node in view.nodes or ():
        nodes[named(owner(pools, node["metadata"].get("labels") or {}))].append(node)
    matched, outdated = _instances(installation, view.instances)
    reported = {p["name"]: p for p in (view.kubevirt.get("status") or {}).get("virtHandlerPools") or ()}
    entries = []
    for pool in (*pools, None):
        name = named(pool)
        own = [pod for pod in pods if pod.pool == (pool.name if pool else "") and not pod.ending]
        entries.append(
            {
                "name": name,
                "handlerImage": (pool.handler_image if pool else "") or installation.image("virt-handler"),
                "launcherImage": installation.fleet.node_image(pool),
                "hypervisor": pool.hypervisor if pool else "",
                "exclusive": bool(pool and pool.exclusive),
                "nodes": sorted(node["metadata"]["name"] for node in nodes[name]),
                "desiredHandlers": len(nodes[name]),
                "readyHandlers": sum(pod.ready for pod in own) if view.live else None,
                "versions": sorted({v for node in nodes[name] if (v := _version(node))}),
                "vmis": matched[name],
                "outdatedVMIs": len(outdated[name]),
                "outdated": sorted(outdated[name]),
                "conditions": reported.get(name, {}).get("conditions", []),
            }
        )
    live = (*_stopped(view), *_handlers(view, pods)) if view.live else ()
    return {"pools": entries, "problems": [*_configuration(pools), *live]}


def named(pool: Pool | None) -> str:
    """A pool as it is shown, and what is in none."""
    return pool.name if pool else PRIMARY


def _version(node: dict[str, Any]) -> str:
    return str((node["metadata"].get("annotations") or {}).get(names.HANDLER_VERSION, ""))


def _instances(
    installation: Installation, vmis: Iterable[dict[str, Any]]
) -> tuple[Counter[str], defaultdict[str, list[str]]]:
    """How many VMIs each pool has, and which of them run on another image than they would get now."""
    matched: Counter[str] = Counter()
    outdated: defaultdict[str, list[str]] = defaultdict(list)
    for vmi in vmis:
        if (vmi.get("status") or {}).get("phase") not in FINAL:
            name = named(installation.fleet.launcher(vmi).pool)
            matched[name] += 1
            if installation.fleet.outdated(vmi):
                outdated[name].append(f"{vmi['metadata'].get('namespace', 'default')}/{vmi['metadata']['name']}")
    return matched, outdated


def _configuration(pools: tuple[Pool, ...]) -> Iterable[str]:
    for overlap in overlaps(pools):
        labels = ", ".join(f"{key}={value}" for key, value in overlap.witness.items())
        yield (
            f"pools {overlap.first.name} and {overlap.second.name} overlap: a node with {labels} "
            f"belongs to {overlap.first.name}"
        )
    for pool in shadowed(pools):
        yield f"pool {pool.name} can own no node: earlier pools take all that it selects"
    for first, second, device in shared_devices(pools):
        yield f"pools {first.name} and {second.name} both name {device}: its VMs go to {first.name}"


def _stopped(view: FleetView) -> Iterable[str]:
    """What keeps the operator from giving nodes the handlers that they should have."""
    for condition in (view.kubevirt.get("status") or {}).get("conditions") or ():
        if condition["type"] == DEGRADED and condition["status"] == "True" and condition["reason"] in STOPPED:
            yield str(condition["message"])


def _handlers(view: FleetView, pods: list[HandlerPod]) -> Iterable[str]:
    there: dict[str, list[str]] = defaultdict(list)
    for pod in pods:
        if pod.spec.node_name:
            there[pod.spec.node_name].append(pod.metadata.name)
    for node in view.nodes or ():
        name = node["metadata"]["name"]
        if not there[name]:
            yield f"node {name} has no handler: VMs cannot run there"
        elif len(there[name]) > 1:
            yield f"node {name} has {len(there[name])} handlers: {', '.join(sorted(there[name]))}"
    for pod in pods:
        if pod.failure:
            yield pod.failure
