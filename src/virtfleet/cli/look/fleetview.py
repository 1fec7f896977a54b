"""What `explain` and `pools` look at: a KubeVirt object, nodes, handlers and VMIs, from files or from the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from virtfleet.api import names
from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import CommandError
from virtfleet.cli.reach import Where, cluster_options, oldest_kubevirt, with_cluster
from virtfleet.kube.client import Client
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.resource import NODES, PERSISTENT_VOLUMES, PODS, VMIS, VMS, Obj
from virtfleet.local import nodesfile


@dataclass(slots=True)
class FleetView:
    """One look at a fleet. `nodes` is None where nobody asked about nodes."""

    kubevirt: Obj
    nodes: list[Obj] | None = None
    pods: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    vms: list[Obj] = field(default_factory=list)
    volumes: dict[tuple[str, str], Obj] = field(default_factory=dict)
    """The PersistentVolumes, by namespace and name of the claims that they are bound to."""
    live: bool = False


def fleet_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where a fleet is looked at: files, or a cluster."""
    for option in (
        cluster_options,
        click.option("--nodes", "nodes_file", help="File with nodes; those of the cluster where left out."),
        click.option("--kubevirt", "kubevirt_file", help="The KubeVirt object's file; the cluster's where left out."),
    ):
        function = option(function)
    return function


def look(kubevirt_file: str | None, nodes_file: str | None, where: Where) -> FleetView:
    """What the files say, or the cluster."""
    if kubevirt_file:
        view = FleetView(cluster_of(kubevirt_file).kubevirt)
    else:
        try:
            view = with_cluster(_ask, where)
        except ConfigError as error:
            raise CommandError(str(error), "Name a file with --kubevirt to work without a cluster.") from None
    if nodes_file:
        view.nodes = read_nodes(nodes_file)
    return view


async def _ask(api: Client) -> FleetView:
    kubevirt = await oldest_kubevirt(api)
    if kubevirt is None:
        raise CommandError("the cluster has no KubeVirt object", "Install VirtFleet, or name a file with --kubevirt.")
    nodes, pods, instances, vms, volumes = await asyncio.gather(
        api.list(NODES),
        api.list(PODS, kubevirt["metadata"]["namespace"], labels=f"{names.APP_LABEL}=virt-handler"),
        api.list(VMIS),
        api.list(VMS),
        api.list(PERSISTENT_VOLUMES),
    )
    claimed = {(c["namespace"], c["name"]): volume for volume in volumes if (c := volume["spec"].get("claimRef"))}
    return FleetView(kubevirt, nodes, pods, instances, vms, claimed, live=True)


def read_nodes(file: str) -> list[Obj]:
    """Nodes from `kubectl get nodes -o yaml`, or from a nodes file of the local cluster."""
    try:
        document = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if not isinstance(document, dict) or "nodes" not in document:
        nodes = [obj for obj in objects([file]) if obj["kind"] == NODES.kind]
        if not nodes:
            raise CommandError(f"{file} has no nodes", "Use the output of: kubectl get nodes -o yaml")
        return nodes
    return [
        {
            "metadata": {"name": spec.name, "labels": {"kubernetes.io/os": "linux", **spec.labels}},
            "spec": {"taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in spec.taints]},
            "status": {"allocatable": {name: str(count) for name, count in spec.devices.items()}},
        }
        for spec in nodesfile.parse(document)
    ]
