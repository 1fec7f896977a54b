"""`virtfleet explain`: which pool, image, hypervisor and nodes a VMI gets, and why.

The decisions are those of the components themselves: the same functions, called with the same objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from virtfleet.cli.look.fleetview import FleetView, fleet_options, look
from virtfleet.cli.manifests import completed_instances, objects
from virtfleet.cli.output import CommandError, did_you_mean, output_option, result, table

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
    from virtfleet.installation import Installation
    from virtfleet.reasons.explanation import explanation

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
    vmis, vms = (
        {obj["metadata"]["name"]: obj for obj in objs if obj["metadata"]["namespace"] == namespace}
        for objs in (view.instances, view.vms)
    )
    if name in vmis:
        return [vmis[name]]
    if name in vms:
        return completed_instances([vms[name]], installation)
    near = did_you_mean(name, vmis | vms).strip().capitalize()
    raise CommandError(
        f"there is no VM and no VMI {namespace}/{name}", near or "`kubectl get vm,vmi -A` lists what there is."
    )


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
