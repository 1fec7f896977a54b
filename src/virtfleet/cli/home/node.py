"""`virtfleet node`: the nodes of the local cluster, and what may happen to them."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from virtfleet.api.names import FINAL, OUT_OF_SERVICE
from virtfleet.cli.home import readiness
from virtfleet.cli.home.cluster import data_option, load_existing
from virtfleet.cli.output import CommandError, F, Group, output_option, pair, result, table
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import NODES, PODS, VMIS
from virtfleet.local import directory, nodesfile, processes, supervisor
from virtfleet.local.directory import Settings

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

_ATTEMPTS = 10  # others change a Node, too


@click.group(cls=Group)
def node() -> None:
    """Nodes of the local cluster."""


def _on_one(function: F) -> F:
    """A command, by its function's name, about the node NAME."""
    node.command(function.__name__)(data_option(click.argument("name")(output_option(function))))
    return function


@node.command("ls")
@data_option
@output_option
def ls(data: Path, output: str) -> None:
    """List the nodes: whether their agent runs, and what the API server says of them."""
    settings = _settings(data)
    running = {child["name"]: child for child in _ask(data, op="status")["children"]}
    nodes, all_pods = readiness.ask(data, lambda api: asyncio.gather(api.list(NODES), api.list(PODS)))
    known = {obj["metadata"]["name"]: obj for obj in nodes}
    pods = Counter(pod["spec"].get("nodeName") for pod in all_pods)
    facts = [_facts(spec, running.get(spec.name), known.get(spec.name), pods[spec.name]) for spec in settings.nodes]
    rows = [
        [f["name"], f["agent"], f["ready"], f["pods"], ",".join(f"{k}={v}" for k, v in f["labels"].items())]
        for f in facts
    ]
    result(output, facts, table(rows, ["NAME", "AGENT", "READY", "PODS", "LABELS"]))


@node.command("add")
@data_option
@click.argument("name")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label of the node.")
@click.option("--taint", "taints", multiple=True, metavar="K=V:EFFECT", help="A taint of the node.")
@click.option("--device", "devices", multiple=True, metavar="RESOURCE=N", help="Pretend devices of the node.")
@output_option
def add(
    data: Path, name: str, labels: tuple[str, ...], taints: tuple[str, ...], devices: tuple[str, ...], output: str
) -> None:
    """Add a node and start it."""
    settings = _settings(data)
    described = {
        "name": name,
        "labels": dict(pair("--label", text) for text in labels),
        "taints": [_taint(text) for text in taints],
        "devices": {key: _count(key, value) for key, value in (pair("--device", text) for text in devices)},
    }
    nodes = nodesfile.parse({"nodes": [*msgspec.to_builtins(settings.nodes), described]})
    settings = msgspec.structs.replace(settings, nodes=nodes)
    directory.save(data, settings)
    processes.run_agent(data, settings, name)
    result(output, described, f"{name} added; it is ready when `virtfleet node ls` says so")


@_on_one
def start(data: Path, name: str, output: str) -> None:
    """Start a node's agent. A node that was fenced is in service again."""
    settings = _settings(data, name)
    _serve(data, name, in_service=True)
    processes.run_agent(data, settings, name)
    result(output, {"node": name, "agent": "running"}, f"{name} started")


@_on_one
def stop(data: Path, name: str, output: str) -> None:
    """Stop a node's agent. Its pods go on, as they do when a kubelet is stopped."""
    _settings(data, name)
    _ask(data, op="end", name=name, signal=int(signal.SIGTERM), timeout=60)
    result(output, {"node": name, "agent": "stopped"}, f"{name} stopped; its pods go on")


@_on_one
def kill(data: Path, name: str, output: str) -> None:
    """The power failure of a node: its agent and all its pods are gone at once; its disk stays."""
    _power_off(data, _settings(data, name), name, signal.SIGKILL)
    result(output, {"node": name, "agent": "killed"}, f"{name} killed with all its pods")


@_on_one
def fence(data: Path, name: str, output: str) -> None:
    """Switch a node off and vouch for it: its pods are given up, and its VMs start elsewhere where they may.

    What took it out of service is the taint node.kubernetes.io/out-of-service; `virtfleet node start` takes it off.
    """
    settings = _settings(data, name)
    _power_off(data, settings, name, signal.SIGKILL)
    _serve(data, name, in_service=False)
    said = f"{name} is off and out of service; VMs that may run elsewhere start there"
    result(output, {"node": name, "agent": "killed", "outOfService": True}, said)


@node.command("rm")
@data_option
@click.argument("name")
@click.option("--force", is_flag=True, help="Although VMs run there, which end.")
@output_option
def rm(data: Path, name: str, force: bool, output: str) -> None:
    """Take a node out of the cluster, with its pods. Refused while VMs run there, unless --force is given."""
    settings = _settings(data, name)
    _ask(data, op="status")
    vms = [
        f"{vmi['metadata']['namespace']}/{vmi['metadata']['name']}"
        for vmi in ([] if settings.bare else readiness.ask(data, lambda api: api.list(VMIS)))
        if (vmi.get("status") or {}).get("nodeName") == name and vmi["status"].get("phase") not in FINAL
    ]
    if vms and not force:
        raise CommandError(
            f"VMs run on {name}: {', '.join(vms)}",
            f"Move them (kubectl drain {name} --ignore-daemonsets --delete-emptydir-data), or repeat it with --force.",
        )
    # First what `up` would bring it back from: an interrupted removal is finished by the next `up`.
    directory.save(data, msgspec.structs.replace(settings, nodes=[n for n in settings.nodes if n.name != name]))
    take_away(data, settings, name)
    result(output, {"node": name, "removed": True, "vms": vms}, f"{name} is gone, with all its pods")


def take_away(data: Path, settings: Settings, name: str) -> None:
    """End a node's agent and its pods, and forget the node."""
    _power_off(data, settings, name, signal.SIGTERM)
    readiness.ask(data, partial(_forget, name))


async def _forget(name: str, api: Client) -> None:
    with ignoring(is_not_found):  # it never came up
        await api.delete(NODES, name)  # first, so that no pods are made for it any more
    for pod in await api.list(PODS):
        # Nobody is left there who could say that they have ended.
        if pod["spec"].get("nodeName") == name:
            with ignoring(is_not_found):
                await api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)


def _power_off(data: Path, settings: Settings, name: str, how: signal.Signals) -> None:
    """End a node's agent, and all its pods at once."""
    from virtfleet.local.node.layout import Layout
    from virtfleet.local.node.network import network_of
    from virtfleet.local.node.teardown import power_off

    _ask(data, op="end", name=name, signal=int(how), timeout=60)
    asyncio.run(power_off(Layout(data, settings.name, name), network_of(settings)))


def _serve(data: Path, name: str, *, in_service: bool) -> None:
    """Have the taint that says that nothing runs on a node, or not."""
    try:
        readiness.ask(data, partial(_taint_node, name, in_service))
    except ApiError as error:
        if readiness.is_silence(error):
            raise CommandError(f"the API server does not answer: {error}", "Start it with: virtfleet up") from None
        raise CommandError(f"the API server refuses the taint of {name}: {error}") from None


async def _taint_node(name: str, in_service: bool, api: Client) -> None:
    with ignoring(is_not_found):  # it never came up
        for _ in range(_ATTEMPTS):
            obj = await api.get(NODES, name)
            present = obj["spec"].get("taints") or []
            wanted = [taint for taint in present if taint["key"] != OUT_OF_SERVICE]
            if not in_service:
                wanted.append({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"})
            with ignoring(is_conflict):
                if wanted != present:
                    await api.replace(NODES, {**obj, "spec": {**obj["spec"], "taints": wanted}})
                return
        raise CommandError(f"node {name} keeps changing", "Try again.")


def _settings(data: Path, name: str = "") -> Settings:
    """The cluster's settings; with `name`, they must have a node of that name."""
    settings = load_existing(data)
    if name and name not in [spec.name for spec in settings.nodes]:
        raise CommandError(f"there is no node {name!r}", "virtfleet node ls lists them.")
    return settings


def _ask(data: Path, **request: Any) -> dict[str, Any]:
    try:
        return supervisor.ask(data, **request)
    except supervisor.NotRunning as error:
        raise CommandError(str(error), "Start it with: virtfleet up") from None


def _facts(
    spec: nodesfile.NodeSpec, child: dict[str, Any] | None, obj: dict[str, Any] | None, pods: int
) -> dict[str, Any]:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    return {
        "name": spec.name,
        "agent": "running" if child and child["running"] else "stopped",
        "ready": next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown"),
        "pods": pods,
        "labels": spec.labels,
        "taints": msgspec.to_builtins(spec.taints),
        "devices": spec.devices,
    }


def _taint(text: str) -> dict[str, str]:
    head, colon, effect = text.rpartition(":")
    if not colon:
        raise CommandError(f"--taint {text!r} is not of the form K=V:EFFECT")
    key, _, value = head.partition("=")
    return {"key": key, "value": value, "effect": effect}


def _count(resource: str, text: str) -> int:
    if not text.isdecimal():
        raise CommandError(f"--device {resource}={text}: the number of devices is missing")
    return int(text)
