"""Whether the local cluster is ready: one answer for `virtfleet up`, which waits for it, and for `virtfleet status`.

Ready means that what people do next works: the disk can be written to, the API server and every node's agent answer,
and VirtFleet's components run and admit VMs. What the API server still has from before a `down` counts for nothing: a
node counts when the agent that runs now has looked at all its pods, and only then do their states.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from virtfleet.cli.reach import T, Where, is_true, with_cluster
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import NODES, PODS, VMIS, Obj
from virtfleet.local.directory import Settings
from virtfleet.local.nodesfile import AGENT, DESCRIBED
from virtfleet.local.processes import CONTROL_PLANE

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

_LEAST_SPACE = 1 << 20
_API_TIME = 10.0
_Running = Mapping[str, Mapping[str, Any]]  # what the supervisor runs, by name


def ask(data: Path, work: Callable[[Client], Awaitable[T]]) -> T:
    """What `work` does with the API server, as an administrator: at once, or not at all."""

    async def in_time(api: Client) -> T:
        try:
            async with asyncio.timeout(_API_TIME):
                return await work(api)
        except TimeoutError:
            raise ApiError("Timeout", f"there was no answer within {_API_TIME:.0f} s") from None

    return with_cluster(in_time, Where(data / "kubeconfig"), patience=0.0)


def why_unready(data: Path, settings: Settings, children: Sequence[Mapping[str, Any]]) -> str | None:
    """The first thing that is missing; None when the cluster is ready. `children` are what the supervisor runs."""
    running = {child["name"]: child for child in children}

    async def of_nodes(api: Client) -> str | None:
        return await why_nodes_unready(settings, running, api) or await why_not_installed(settings, api)

    try:
        return (
            why_unwritable(data)
            or _why_down(running, [CONTROL_PLANE])
            or _with_history(why_api_unready(data), running[CONTROL_PLANE])
            or _why_down(running, [node.name for node in settings.nodes])
            or ask(data, of_nodes)
        )
    except ApiError as error:
        said = "does not answer" if is_silence(error) else "refuses what is asked"
        return f"the API server {said}: {error.message}"


def is_silence(error: ApiError) -> bool:
    """Whether nobody answered in time, which is no refusal."""
    return error.code in (503, 504)


def _with_history(trouble: str | None, child: Mapping[str, Any]) -> str | None:
    """What is wrong now, and how the process ended that answered before."""
    return f"{trouble}. {CONTROL_PLANE} {child['reason']}" if trouble and child["reason"] else trouble


def why_api_unready(data: Path) -> str | None:
    try:
        ask(data, lambda api: api.request("GET", "/readyz"))
    except (ApiError, ConfigError) as error:
        failed = [line[3:] for line in str(error).splitlines() if line.startswith("[-]")]
        said = f"is not ready: {'; '.join(failed)}" if failed else f"does not answer: {error}"
        return f"the API server {said}"
    return None


def why_unwritable(data: Path) -> str | None:
    """What is wrong with the disk, and what to do."""
    disk = os.statvfs(data)
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk that holds {data} is read-only: repair it and mount it anew"
    free = disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)
    if free < _LEAST_SPACE:
        return f"the disk that holds {data} is full. Make room there; what runs goes on"
    return None


def _why_down(running: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    for name in names:
        child = running.get(name)
        if child is None or not child["running"] or child["ending"]:
            why = f": it {child['reason']}" if child and child["reason"] else ""
            return f"{name} does not run{why}"
    return None


async def why_nodes_unready(settings: Settings, running: _Running, api: Client) -> str | None:
    ready = await ready_nodes(settings, running, api)
    waiting = [node.name for node in settings.nodes if node.name not in ready]
    return f"not ready yet: {', '.join(waiting)}" if waiting else None


async def ready_nodes(settings: Settings, running: _Running, api: Client) -> set[str]:
    """Nodes that are ready and as the nodes file has them, said by the agents that run now."""
    nodes = {node["metadata"]["name"]: node for node in await api.list(NODES)} if settings.nodes else {}
    return {
        spec.name
        for spec in settings.nodes
        if (node := nodes.get(spec.name)) is not None
        and is_true(node, "Ready")
        and _notes(node).get(DESCRIBED) == msgspec.json.encode(spec).decode()
        and _notes(node).get(AGENT) == str(running.get(spec.name, {}).get("pid"))
    }


async def why_not_installed(settings: Settings, api: Client) -> str | None:
    """Why VirtFleet cannot be used, where it should be there."""
    if settings.bare or not settings.nodes:
        return None
    if not settings.code:
        return "VirtFleet is not installed"
    from virtfleet.cli.installing import why_not_ready

    return await why_not_ready(api) or why_stale(await api.list(VMIS), await api.list(PODS))


def why_stale(vmis: Sequence[Obj], pods: Sequence[Obj]) -> str | None:
    """VMIs that are said to run without a Pod that does: those of before a `down`, until somebody has looked."""
    alive = {
        owner["uid"]
        for pod in pods
        if pod.get("status", {}).get("phase") == "Running"
        for owner in pod["metadata"].get("ownerReferences") or ()
    }
    stale = [
        f"{vmi['metadata']['namespace']}/{vmi['metadata']['name']}"
        for vmi in vmis
        if (vmi.get("status") or {}).get("phase") in ("Scheduled", "Running") and vmi["metadata"]["uid"] not in alive
    ]
    return f"not looked at yet: VMI {', '.join(stale)}" if stale else None


def _notes(obj: Obj) -> Mapping[str, str]:
    notes: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return notes
