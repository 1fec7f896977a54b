"""`virtfleet pools`: the pools of nodes, and the way here from kubevirt-aie-webhook."""

from __future__ import annotations

import json

import click

from virtfleet.cli.output import CommandError, table, yaml_documents


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", type=click.Choice(["text", "wide", "json"]), default="text", help="Form of the result.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object; the cluster's where left out.")
@click.option("--nodes", "nodes_file", help="File with nodes; those of the cluster where left out.")
@click.pass_context
def pools(context: click.Context, output: str, kubevirt_file: str | None, nodes_file: str | None) -> None:
    """Pools of nodes: their handlers, their VMs, and what is wrong."""
    if context.invoked_subcommand:
        return
    from virtfleet.cli.look import fleetview
    from virtfleet.cli.look.poolreport import report

    view = fleetview.from_files(kubevirt_file, nodes_file) if kubevirt_file else fleetview.from_cluster(nodes_file)
    found = report(view)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
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
        for p in found["pools"]
    ]
    if output == "wide":
        header += ["HYPERVISOR", "HANDLER IMAGE", "LAUNCHER IMAGE", "ON NODES"]
        rows = [
            [*row, p["hypervisor"] or "-", p["handlerImage"], p["launcherImage"], ",".join(p["nodes"]) or "-"]
            for row, p in zip(rows, found["pools"], strict=True)
        ]
    click.echo(table(rows, header))
    for problem in found["problems"]:
        click.echo(f"! {problem}")


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
    from virtfleet.cli.look.aie import AieError, kubevirt_of, node_selectors
    from virtfleet.cli.manifests import objects

    maps = [obj for obj in objects([file]) if obj["kind"] == "ConfigMap"]
    if not maps:
        raise CommandError(
            f"{file} has no ConfigMap", "Use: kubectl get configmap kubevirt-aie-launcher-config -o yaml"
        )
    try:
        kubevirt, warnings = kubevirt_of(maps[0], node_selectors(selectors))
    except AieError as error:
        raise CommandError(str(error)) from None
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(yaml_documents([kubevirt]), nl=False)
