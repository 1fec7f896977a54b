"""Which pool, image, hypervisor and nodes a VMI gets, and why: what the components' own functions answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtfleet.installation import Installation
from virtfleet.pods.launcher import Unrenderable, render
from virtfleet.pools.matching import explain as verdicts
from virtfleet.pools.model import owner
from virtfleet.reasons.fitting import obstacles
from virtfleet.reasons.instances import identified


def explanation(
    vmi: dict[str, Any],
    installation: Installation,
    nodes: list[dict[str, Any]] | None,
    volumes: Mapping[tuple[str, str], dict[str, Any]],
    *,
    live: bool = False,
) -> dict[str, Any]:
    """Everything about one VMI, as data. `live` nodes are those of a cluster, with what their handlers say."""
    pools = installation.fleet.pools
    launcher = installation.fleet.launcher(vmi)
    explained: dict[str, Any] = {
        "namespace": vmi["metadata"].get("namespace", "default"),
        "name": vmi["metadata"].get("name", ""),
        "pool": launcher.pool.name if launcher.pool else None,
        "hypervisor": launcher.hypervisor,
        "image": launcher.image,
        "node": (vmi.get("status") or {}).get("nodeName") or None,
        "pools": [
            {"name": v.pool.name, "matched": v.matched, "by": v.by, "reason": v.reason, "used": v.pool == launcher.pool}
            for v in verdicts(pools, vmi)
        ],
    }
    try:
        labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes or ()}
        pod = render(identified(vmi), installation, nodes=labels)
    except Unrenderable as error:
        return {**explained, "problem": str(error)}
    if nodes is not None:
        explained["nodes"] = []
        for node in nodes:
            pool = owner(pools, node["metadata"].get("labels") or {})
            why_not = obstacles(pod, node, volumes, live=live)
            explained["nodes"].append(
                {
                    "name": node["metadata"]["name"],
                    "handler": pool.daemon_set if pool else "virt-handler",
                    "fits": not why_not,
                    "why": why_not,
                }
            )
    return explained
