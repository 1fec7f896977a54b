"""The state of every pool, and what is wrong with them, from one look at a fleet. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from virtfleet.api import names
from virtfleet.api.names import FINAL
from virtfleet.cli.look.fleetview import FleetView
from virtfleet.cli.reach import is_true
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
        annotations = [node["metadata"].get("annotations") or {} for node in nodes[name]]
        own = [pod for pod in pods if pod.pool == (pool.name if pool else "") and not pod.ending]
        entries.append(
            {
                "name": name,
                "handlerImage": (pool.handler_image if pool else "") or installation.image("virt-handler"),
                "launcherImage": installation.fleet.node_images(pool)[""],
                "hypervisor": pool.hypervisor if pool else "",
                "exclusive": bool(pool and pool.exclusive),
                "nodes": sorted(node["metadata"]["name"] for node in nodes[name]),
                "desiredHandlers": len(nodes[name]),
                "readyHandlers": sum(pod.ready for pod in own) if view.live else None,
                "versions": sorted({version for notes in annotations if (version := notes.get(names.HANDLER_VERSION))}),
                "vmis": matched[name],
                "outdatedVMIs": len(outdated[name]),
                "outdated": sorted(outdated[name]),
                "conditions": reported.get(name, {}).get("conditions", []),
            }
        )
    live = (*_stopped(view), *_handlers(view, pods), *_empty(pools, nodes)) if view.live else ()
    real, possible = _configuration(pools, view.nodes)
    return {"pools": entries, "problems": [*real, *live], "notes": possible}


def named(pool: Pool | None) -> str:
    """A pool as it is shown, and what is in none."""
    return pool.name if pool else PRIMARY


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


def _configuration(pools: tuple[Pool, ...], nodes: list[dict[str, Any]] | None) -> tuple[list[str], list[str]]:
    """What is wrong with the pools, and what could become so: an overlap that no node is in harms nobody yet."""
    real: list[str] = []
    possible: list[str] = []
    labels_of = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes or ()}
    for overlap in overlaps(pools):
        labels = ", ".join(f"{key}={value}" for key, value in overlap.witness.items())
        words = (
            f"pools {overlap.first.name} and {overlap.second.name} overlap: a node with {labels} "
            f"belongs to {overlap.first.name}"
        )
        both = [n for n, own in labels_of.items() if overlap.first.selects(own) and overlap.second.selects(own)]
        (possible if nodes is not None and not both else real).append(
            words + (f", as {', '.join(sorted(both))} does" if both else "")
        )
    real += [f"pool {pool.name} can own no node: earlier pools take all that it selects" for pool in shadowed(pools)]
    real += [
        f"pools {first.name} and {second.name} both name {device}: its VMs go to {first.name}"
        for first, second, device in shared_devices(pools)
    ]
    return real, possible


def _empty(pools: tuple[Pool, ...], nodes: Mapping[str, list[dict[str, Any]]]) -> Iterable[str]:
    """Pools and nodes that can run no VM."""
    for pool in pools:
        if not nodes.get(pool.name):
            yield f"pool {pool.name} has no node: its VMs cannot start"
    for node in (each for own in nodes.values() for each in own):
        if (node.get("status") or {}).get("conditions") and not is_true(node, "Ready"):
            yield f"node {node['metadata']['name']} is not ready"


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
