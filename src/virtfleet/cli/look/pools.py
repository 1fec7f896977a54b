"""`virtfleet pools`: the pools of nodes, and the way here from kubevirt-aie-webhook."""

from __future__ import annotations

from typing import Any

import click

from virtfleet.cli.look.fleetview import fleet_options, look
from virtfleet.cli.output import CommandError, result, table, wide_option, yaml_documents


@click.group(invoke_without_command=True)
@wide_option
@fleet_options
@click.pass_context
def pools(context: click.Context, /, output: str, **fleet: Any) -> None:
    """Pools of nodes: their handlers, their VMs, and what is wrong."""
    if context.invoked_subcommand:
        return
    from virtfleet.cli.look.poolreport import report

    state = report(look(**fleet))
    header = ["POOL", "NODES", "READY", "VERSIONS", "VMS", "OUTDATED"]
    rows: list[list[object]] = [
        [
            p["name"],
            len(p["nodes"]),
            f"{'-' if p['readyHandlers'] is None else p['readyHandlers']}/{p['desiredHandlers']}",
            ",".join(p["versions"]) or "-",
            p["vmis"],
            p["outdatedVMIs"],
        ]
        for p in state["pools"]
    ]
    if output == "wide":
        header += ["HYPERVISOR", "HANDLER IMAGE", "LAUNCHER IMAGE", "ON NODES"]
        rows = [
            [*row, p["hypervisor"] or "-", p["handlerImage"], p["launcherImage"], ",".join(p["nodes"]) or "-"]
            for row, p in zip(rows, state["pools"], strict=True)
        ]
    result(output, state, "\n".join([table(rows, header), *(f"! {problem}" for problem in state["problems"])]))


@pools.command("import-aie")
@click.argument("file")
@click.option(
    "--node-selector",
    "selectors",
    multiple=True,
    metavar="RULE:KEY=VALUE",
    help="Labels of the nodes for a rule that has none; repeatable.",
)
def import_aie(file: str, selectors: tuple[str, ...]) -> None:
    """Turn the rules of kubevirt-aie-webhook's ConfigMap into virtHandlerPools of a KubeVirt object."""
    from virtfleet.cli.look.aie import kubevirt_of, node_selectors
    from virtfleet.cli.manifests import objects

    maps = [obj for obj in objects([file]) if obj["kind"] == "ConfigMap"]
    if not maps:
        raise CommandError(
            f"{file} has no ConfigMap", "Use: kubectl get configmap kubevirt-aie-launcher-config -o yaml"
        )
    kubevirt, warnings = kubevirt_of(maps[0], node_selectors(selectors))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(yaml_documents([kubevirt]), nl=False)
