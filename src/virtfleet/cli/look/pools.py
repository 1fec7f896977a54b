"""`virtfleet pools`: the pools of nodes, and the way here from kubevirt-aie-webhook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import click
import yaml

from virtfleet.api.kinds import KUBEVIRT
from virtfleet.cli.look.fleetview import fleet_options, look
from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import CommandError, Group, bad, pair, refused, result, table, wide_option, yaml_documents

_NAMED = 5


@click.group(cls=Group, invoke_without_command=True)
@wide_option
@fleet_options
@click.option("--plan", "planning", is_flag=True, help="Say what the KubeVirt object of -f would do; change nothing.")
@click.option("-f", "--filename", "file", help="The KubeVirt object that is to be applied.")
@click.pass_context
def pools(context: click.Context, /, output: str, planning: bool, file: str | None, **fleet: Any) -> None:
    """Pools of nodes: their handlers, their VMs, and what is wrong."""
    if context.invoked_subcommand:
        return
    if planning or file:
        _plan(output, planning, file, fleet)
        return
    from virtfleet.cli.look.poolreport import report

    state = report(look(**fleet))
    header = ["POOL", "NODES", "READY", "VERSIONS", "VMS", "OUTDATED"]
    if output == "wide":
        header += ["HYPERVISOR", "HANDLER IMAGE", "LAUNCHER IMAGE", "ON NODES", "OUTDATED VMS"]
    rows: list[list[object]] = [
        [
            p["name"],
            len(p["nodes"]),
            f"{'-' if p['readyHandlers'] is None else p['readyHandlers']}/{p['desiredHandlers']}",
            ",".join(p["versions"]) or "-",
            p["vmis"],
            p["outdatedVMIs"],
            p["hypervisor"] or "-",
            p["handlerImage"],
            p["launcherImage"],
            ",".join(p["nodes"]) or "-",
            ",".join(p["outdated"]) or "-",
        ]
        for p in state["pools"]
    ]
    lines = [table([row[: len(header)] for row in rows], header)]
    lines += [f"{bad('!')} {problem}" for problem in state["problems"]]
    if output == "wide":
        lines += [f"  {note}" for note in state["notes"]]
    else:
        lines += [f"  outdated in {p['name']}: {_some(p['outdated'])}" for p in state["pools"] if p["outdated"]]
    result(output, state, "\n".join(lines))


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more (-o wide names them)" if more > 0 else "")


def _plan(output: str, planning: bool, file: str | None, fleet: dict[str, Any]) -> None:
    from virtfleet.cli.look.plan import plan
    from virtfleet.cli.reach import with_cluster
    from virtfleet.kube.resource import VMS

    if not (planning and file):
        raise CommandError("--plan and -f go together", "Use: virtfleet pools --plan -f kubevirt.yaml")
    if fleet["kubevirt_file"]:
        raise CommandError("a plan starts from what a cluster runs", "Leave --kubevirt out.")
    wanted, view = cluster_of(file).kubevirt, look(**fleet)
    planned = plan(view, wanted, with_cluster(lambda api: api.list(VMS), fleet["where"]))
    result(output, planned, _in_words(planned))
    if planned["refused"]:
        raise SystemExit(1)


def _in_words(planned: dict[str, Any]) -> str:
    if planned["refused"]:
        return "\n".join(["It would be refused:", *(f"  {why}" for why in planned["refused"])])
    lines = [f"node {c['node']} gets a new handler ({c['from']} -> {c['to']})" for c in planned["handlers"]]
    if planned["vms"]:
        header = ["VM", "NODE", "POOL", "IMAGE", "NEW IMAGE", "IT", "WHY"]
        rows = [
            [f"{v['namespace']}/{v['name']}", *(v[key] for key in ("node", "pool", "image", "newImage", "does", "why"))]
            for v in planned["vms"]
        ]
        lines += ["", table(rows, header), ""] if lines else [table(rows, header), ""]
    lines.append("VMs: " + ", ".join(f"{count} {what}" for what, count in planned["counts"].items()))
    return "\n".join(lines)


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
    maps = [obj for obj in objects([file]) if obj["kind"] == "ConfigMap"]
    if not maps:
        raise CommandError(
            f"{file} has no ConfigMap", "Use: kubectl get configmap kubevirt-aie-launcher-config -o yaml"
        )
    kubevirt, warnings = _kubevirt_of(maps[0], _node_selectors(selectors))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(yaml_documents([kubevirt]), nl=False)


# kubevirt-aie-webhook's ConfigMap has, under `config.yaml`, a list of rules: a name, an image, a selector of devices or
# labels, and perhaps a nodeSelector. Pools say the same, but always name nodes, because they have a handler there.


def _node_selectors(given: Iterable[str]) -> dict[str, dict[str, str]]:
    """`RULE:KEY=VALUE` texts, by rule."""
    labels: dict[str, dict[str, str]] = {}
    for text in given:
        rule, label = pair("--node-selector", text, "RULE:KEY=VALUE")
        key, value = pair("--node-selector", label)
        labels.setdefault(rule, {})[key] = value
    return labels


def _kubevirt_of(
    config_map: Mapping[str, Any], selectors: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """A KubeVirt object with a pool for each rule, and what admission warns of."""
    from virtfleet.admission.review import review
    from virtfleet.installation import Installation

    pools = [_pool(rule, i, selectors) for i, rule in enumerate(_rules(config_map))]
    kubevirt = {
        "apiVersion": KUBEVIRT.api_version,
        "kind": KUBEVIRT.kind,
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {
            "configuration": {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}},
            "virtHandlerPools": pools,
        },
    }
    findings = review(kubevirt, Installation(kubevirt))
    if not findings.allowed:
        raise refused(findings.causes)
    return kubevirt, list(findings.warnings)


def _rules(config_map: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = (config_map.get("data") or {}).get("config.yaml")
    if text is None:
        raise CommandError("the ConfigMap has no key config.yaml")
    try:
        rules = (yaml.safe_load(text) or {}).get("rules")
    except (yaml.YAMLError, AttributeError) as error:
        raise CommandError(f"config.yaml cannot be read: {error}") from None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise CommandError("config.yaml has no list of rules")
    return rules


def _pool(rule: Mapping[str, Any], number: int, selectors: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    name = str(rule.get("name") or f"rule-{number}")
    labels = (rule.get("nodeSelector") or {}).get("matchLabels") or selectors.get(name)
    if not labels:
        raise CommandError(
            f"rule {name!r} names no nodes, and a pool must; "
            f"say which with --node-selector '{name}:KEY=VALUE' (a label of the nodes that have the device)"
        )
    selector = rule.get("selector") or {}
    return {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48].rstrip("-"),
        "virtLauncherImage": rule.get("image") or "",
        "nodeSelector": dict(labels),
        "selector": {key: selector[key] for key in ("deviceNames", "vmLabels") if selector.get(key)},
    }
