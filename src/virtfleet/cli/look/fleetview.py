"""What `explain` and `pools` look at: a KubeVirt object, nodes, handlers and VMIs, from files or from the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from virtfleet.api import names
from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import CommandError
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import KUBEVIRTS, NODES, PODS, VMIS, Obj
from virtfleet.local import nodesfile


@dataclass(slots=True)
class FleetView:
    """One look at a fleet. `nodes` is None where nobody asked about nodes."""

    kubevirt: Obj
    nodes: list[Obj] | None = None
    pods: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    live: bool = False


def from_files(kubevirt_file: str, nodes_file: str | None) -> FleetView:
    return FleetView(cluster_of(kubevirt_file).kubevirt, read_nodes(nodes_file) if nodes_file else None)


def from_cluster(nodes_file: str | None = None) -> FleetView:
    """What the cluster of the current kubeconfig says."""
    try:
        view = asyncio.run(_ask())
    except ConfigError as error:
        raise CommandError(str(error), "Name a file with --kubevirt to work without a cluster.") from None
    except ApiError as error:
        raise CommandError(f"the cluster does not answer: {error.message}") from None
    if nodes_file:
        view.nodes = read_nodes(nodes_file)
    return view


async def _ask() -> FleetView:
    async with Client(config.load()) as api:
        kubevirts = await api.list(KUBEVIRTS)
        if not kubevirts:
            raise CommandError(
                "the cluster has no KubeVirt object", "Install VirtFleet, or name a file with --kubevirt."
            )
        kubevirt = min(kubevirts, key=lambda kv: kv["metadata"].get("creationTimestamp", ""))
        nodes, pods, instances = await asyncio.gather(
            api.list(NODES),
            api.list(PODS, kubevirt["metadata"]["namespace"], labels=f"{names.APP_LABEL}=virt-handler"),
            api.list(VMIS),
        )
    return FleetView(kubevirt, nodes, pods, instances, live=True)


def read_nodes(file: str) -> list[Obj]:
    """Nodes from `kubectl get nodes -o yaml`, or from a nodes file of the local cluster."""
    try:
        document = yaml.safe_load(Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if not isinstance(document, dict) or "nodes" not in document:
        found = [obj for obj in objects([file]) if obj["kind"] == "Node"]
        if not found:
            raise CommandError(f"{file} has no nodes", "Use the output of: kubectl get nodes -o yaml")
        return found
    try:
        specs = nodesfile.parse(document)
    except nodesfile.NodesFileError as error:
        raise CommandError(f"{file}: {error}") from None
    return [
        {
            "metadata": {"name": spec.name, "labels": {"kubernetes.io/os": "linux", **spec.labels}},
            "spec": {"taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in spec.taints]},
            "status": {"allocatable": {name: str(count) for name, count in spec.devices.items()}},
        }
        for spec in specs
    ]
