"""`virtfleet logs`: of VirtFleet's components, of a VM's launcher, and of the processes of the local cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from virtfleet.api import names
from virtfleet.cli.home.cluster import data_option, lines_of, or_of
from virtfleet.cli.output import CommandError, did_you_mean, explained, output_option, result
from virtfleet.cli.reach import Where, cluster_options, with_cluster
from virtfleet.kube.resource import PODS, VMIS, Obj
from virtfleet.pods.launcher import COMPUTE

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

_COMPONENTS = ("virt-operator", "virt-api", "virt-controller", "virt-handler")
_VM = "vm/"
_SILENCE = 86_400.0  # a log that is followed may be silent for long


@click.command()
@data_option
@click.argument("component", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written next.")
@click.option("-n", "--tail", type=click.IntRange(0), help="Only the last lines, of each Pod.")
@click.option("--node", help="Only the Pods of this node.")
@click.option("--namespace", help="Of a VM; that of the kubeconfig's context where left out.")
@click.option("--previous", is_flag=True, help="The run before the last one: how a component ended.")
@cluster_options
@output_option
def logs(
    data: Path,
    component: str | None,
    follow: bool,
    tail: int | None,
    node: str | None,
    namespace: str | None,
    previous: bool,
    where: Where,
    output: str,
) -> None:
    """Print the log of COMPONENT; without one, say which there are.

    COMPONENT is one of VirtFleet's (virt-api, virt-handler, virt-handler-POOL, ...), a Pod of theirs, vm/NAME for the
    launcher of a VM, or a process of the local cluster (control-plane, supervisor, a node).
    """
    folder = data / "logs"
    processes = sorted(path.stem for path in folder.glob("*.log"))
    if component in processes:
        for line in lines_of(folder / f"{component}.log", tail, follow):
            _print(output, component, "", line)
        return
    where = or_of(data, where)
    wanted = {"follow": "true"} if follow else {}
    if tail is not None:
        wanted["tailLines"] = str(tail)
    if previous:
        wanted["previous"] = "true"
    if component is None:
        _list(output, processes, where)
    else:
        show = partial(_show, component, node, namespace, wanted, output, processes)
        with_cluster(show, where, idle=_SILENCE)


def _list(output: str, processes: Sequence[str], where: Where) -> None:
    components: list[str] = []
    try:
        components = with_cluster(_components, where, patience=2.0)
    except Exception as error:
        click.echo(f"components are not listed: {explained(error).message.splitlines()[0]}", err=True)
    result(output, [*processes, *components], "\n".join([*processes, *components]))


async def _components(api: Client) -> list[str]:
    return sorted({_owner(pod) for pod in await _pods(api)})


async def _pods(api: Client) -> list[Obj]:
    return await api.list(PODS, labels=f"{names.APP_LABEL} in ({','.join(_COMPONENTS)})")


def _owner(pod: Obj) -> str:
    """The component of a Pod by the name that people know: that of its DaemonSet, else of its label."""
    owners = [o["name"] for o in pod["metadata"].get("ownerReferences") or () if o["kind"] == "DaemonSet"]
    return str(owners[0] if owners else pod["metadata"]["labels"][names.APP_LABEL])


def chosen(pods: Sequence[Obj], component: str, node: str | None) -> list[Obj]:
    """The Pods that a component's name stands for: all handlers for virt-handler, those of a pool for its own."""
    return [
        pod
        for pod in pods
        if component in (pod["metadata"]["labels"][names.APP_LABEL], _owner(pod), pod["metadata"]["name"])
        and node in (None, pod["spec"].get("nodeName"))
    ]


async def _show(
    component: str,
    node: str | None,
    namespace: str | None,
    wanted: dict[str, str],
    output: str,
    processes: Sequence[str],
    api: Client,
) -> None:
    if component.startswith(_VM):
        pods = await _launchers(api, component.removeprefix(_VM), namespace or api.namespace)
    else:
        every = await _pods(api)
        pods = chosen(every, component, node)
        if not pods:
            raise _unknown(component, node, [*processes, *sorted({_owner(pod) for pod in every})])
    async with asyncio.TaskGroup() as group:
        for pod in pods:
            group.create_task(_print_pod(api, pod, wanted, component, output, several=len(pods) > 1))


async def _launchers(api: Client, name: str, namespace: str) -> list[Obj]:
    vmi = await api.get(VMIS, name, namespace)
    pods = await api.list(PODS, namespace, labels=f"{names.CREATED_BY}={vmi['metadata']['uid']}")
    if not pods:
        raise CommandError(f"{namespace}/{name} has no launcher yet", f"Look at: virtfleet explain {name}")
    return pods


def _unknown(component: str, node: str | None, known: Sequence[str]) -> CommandError:
    if node and component in known:
        return CommandError(f"{component} has no Pod on node {node!r}", "kubectl get nodes lists nodes.")
    near = did_you_mean(component, known)
    return CommandError(f"there is no log of {component!r}", f"{near}There are: {', '.join(known)}")


async def _print_pod(
    api: Client, pod: Obj, wanted: dict[str, str], component: str, output: str, *, several: bool
) -> None:
    meta, containers = pod["metadata"], [container["name"] for container in pod["spec"]["containers"]]
    container = COMPUTE if COMPUTE in containers else containers[0]
    async with api.log(meta["name"], meta["namespace"], {**wanted, "container": container}) as chunks:
        async for line in _lines(chunks):
            _print(output, component, meta["name"], line, prefixed=several)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    left = b""
    async for chunk in chunks:
        *lines, left = (left + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if left:
        yield left.decode(errors="replace")


def _print(output: str, component: str, pod: str, line: str, *, prefixed: bool = False) -> None:
    if output == "json":
        about = {"component": component, "pod": pod} if pod else {"component": component}
        click.echo(json.dumps({**about, "line": line}))
    else:
        click.echo(f"[{pod}] {line}" if prefixed else line)
