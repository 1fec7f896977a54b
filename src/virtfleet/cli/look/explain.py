"""`virtfleet explain`: which pool, image, hypervisor and nodes a VMI gets, and why.

The decisions are those of the components themselves: the same functions, called with the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from virtfleet.cli.look.fleetview import FleetView, fleet_options, look
from virtfleet.cli.output import CommandError, output_option, result, table

if TYPE_CHECKING:
    from virtfleet.installation import Installation


@click.command()
@click.option("-f", "--filename", "files", multiple=True, help="VMIs, or what makes them; repeatable.")
@fleet_options
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the VMI.")
@click.argument("name", required=False)
@output_option
def explain(
    files: tuple[str, ...], namespace: str, name: str | None, output: str, nodes_file: str | None, **fleet: Any
) -> None:
    """Say which pool a VMI matches and by what, its image and hypervisor, and where it can go.

    With -f the VMI comes from a file, else NAME is a VM or VMI of the cluster; of a VM that is stopped, it says where
    it would go. With --kubevirt no cluster is needed.
    """
    from virtfleet.cli.look.instances import completed_instances
    from virtfleet.cli.manifests import objects
    from virtfleet.installation import Installation

    if bool(files) == bool(name):
        raise CommandError("say which VMI", "Name a file with -f, or a VMI of the cluster.")
    if name and fleet["kubevirt_file"]:
        raise CommandError(
            "a VMI of the cluster is explained by the cluster's KubeVirt object", "Leave --kubevirt out."
        )
    view = look(nodes_file=nodes_file, **fleet)
    installation = Installation(view.kubevirt)
    vmis = _named(view, installation, namespace, name) if name else completed_instances(objects(files), installation)
    live = view.live and not nodes_file
    explained = [explanation(vmi, installation, view.nodes, view.volumes, live=live) for vmi in vmis]
    result(output, explained if len(explained) > 1 else explained[0], "\n\n".join(_text(e) for e in explained))


def _named(view: FleetView, installation: Installation, namespace: str, name: str) -> list[dict[str, Any]]:
    """The VMI of that name, else the one that the VM of that name would make."""
    from virtfleet.cli.look.instances import completed_instances

    for objects in (view.instances, view.vms):
        for obj in objects:
            if (obj["metadata"]["namespace"], obj["metadata"]["name"]) == (namespace, name):
                return [obj] if objects is view.instances else completed_instances([obj], installation)
    known = {o["metadata"]["name"] for o in (*view.instances, *view.vms) if o["metadata"]["namespace"] == namespace}
    close = get_close_matches(name, known, n=1)
    raise CommandError(
        f"there is no VM and no VMI {namespace}/{name}",
        f"Did you mean {close[0]!r}?" if close else "`kubectl get vm,vmi -A` lists what there is.",
    )


def explanation(
    vmi: dict[str, Any],
    installation: Installation,
    nodes: list[dict[str, Any]] | None,
    volumes: Mapping[tuple[str, str], dict[str, Any]],
    *,
    live: bool = False,
) -> dict[str, Any]:
    """Everything about one VMI, as data. `live` nodes are those of a cluster, with what their handlers say."""
    from virtfleet.cli.look.fitting import obstacles
    from virtfleet.cli.look.instances import identified
    from virtfleet.pods.launcher import Unrenderable, render
    from virtfleet.pools.matching import explain as verdicts
    from virtfleet.pools.model import owner

    pools = installation.fleet.pools
    launcher = installation.fleet.launcher(vmi)
    asked = verdicts(pools, vmi)
    explained: dict[str, Any] = {
        "namespace": vmi["metadata"].get("namespace", "default"),
        "name": vmi["metadata"].get("name", ""),
        "pool": launcher.pool.name if launcher.pool else None,
        "hypervisor": launcher.hypervisor,
        "image": launcher.image,
        "node": (vmi.get("status") or {}).get("nodeName") or None,
        "pools": [
            {"name": v.pool.name, "matched": v.matched, "by": v.by, "reason": v.reason, "used": v.pool == launcher.pool}
            for v in asked
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


def _text(vmi: dict[str, Any]) -> str:
    lines = [
        f"VMI {vmi['namespace']}/{vmi['name']}",
        f"  pool         {vmi['pool'] or 'none: no pool matches'}",
        f"  hypervisor   {vmi['hypervisor']}",
        f"  image        {vmi['image']}",
    ]
    if vmi["node"]:
        lines.append(f"  runs on      {vmi['node']}")
    if vmi["pools"]:
        rows = [[p["name"], _verdict(p), p["reason"]] for p in vmi["pools"]]
        lines += ["", table(rows, ["POOL", "VERDICT", "WHY"])]
    if "problem" in vmi:
        lines += ["", f"It cannot start: {vmi['problem']}"]
    if "nodes" in vmi:
        rows = [[n["name"], n["handler"], "yes" if n["fits"] else "no", "; ".join(n["why"])] for n in vmi["nodes"]]
        lines += ["", table(rows, ["NODE", "HANDLER", "FITS", "WHY NOT"])]
    return "\n".join(lines)


def _verdict(pool: dict[str, Any]) -> str:
    if pool["used"]:
        return f"matched by {pool['by']}"
    return "matches, but an earlier one wins" if pool["matched"] else "no"
