"""`virtfleet up`: a cluster with VirtFleet on this machine. What runs already is brought to what is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from virtfleet.cli.health.machine import port_is_free
from virtfleet.cli.home import readiness
from virtfleet.cli.home.cluster import data_option, facts_of, is_running, lines_of, load
from virtfleet.cli.output import CommandError, Progress, next_step, on_interrupt, output_option, result
from virtfleet.cli.reach import Where, with_cluster
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import KUBEVIRTS
from virtfleet.local import directory, nodesfile, processes, ranges, supervisor
from virtfleet.local.directory import Settings
from virtfleet.local.processes import CONTROL_PLANE

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

START_DEADLINE = 60.0
SETTLED_DEADLINE = 300.0
LONGEST_SOCKET = 107  # the kernel's limit of a unix socket's path


@click.command()
@data_option
@click.option("--nodes", "nodes_file", type=click.Path(path_type=Path), help="A file that describes the nodes.")
@click.option("--port", type=click.IntRange(1, 65535), help=f"The API server's port [{directory.DEFAULT_PORT}].")
@click.option("--kubevirt", "kubevirt_file", help="A file with the KubeVirt object to install; a plain one else.")
@click.option("--bare/--no-bare", default=None, help="Whether to leave VirtFleet out: a Kubernetes alone.")
@output_option
def up(
    data: Path, nodes_file: Path | None, port: int | None, kubevirt_file: str | None, bare: bool | None, output: str
) -> None:
    """Start a cluster with VirtFleet on this machine, or bring a running one to what is asked for."""
    progress = Progress(quiet=output == "json")
    kubevirt = _kubevirt(kubevirt_file)
    settings = _settings(data, nodes_file, port, bare)
    on_interrupt(
        "what was started goes on, and the cluster is not ready.\n"
        f"Repeat the command to finish it; `virtfleet down --data {data}` stops it."
    )
    _start_supervisor(data, settings, progress)
    processes.run_control_plane(data)
    _wait_for_api_server(data, settings, progress)
    _remove_nodes(data, settings, progress)
    _start_nodes(data, settings, progress)
    settings = _install(data, settings, kubevirt, progress)
    _settle(data, settings, progress)
    if installed := _installed(data, settings):
        progress("VirtFleet is available")
    seconds = round(time.monotonic() - progress.began, 1)
    facts = facts_of(data, settings)
    result(output, {**facts, "kubevirt": installed, "seconds": seconds}, _how_to_use(data, facts, seconds))


def _kubevirt(file: str | None) -> dict[str, Any] | None:
    if file is None:
        return None
    from virtfleet.cli import installing

    return installing.read(file)


def _settings(data: Path, nodes_file: Path | None, port: int | None, bare: bool | None) -> Settings:
    """What this cluster should be: what is asked for now, else what it was."""
    old = load(data)
    nodes = nodesfile.load(nodes_file) if nodes_file else (old.nodes if old else _default_nodes())
    _check_place(data, old, nodes, port)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o755)
        if trouble := readiness.why_unwritable(data):
            raise CommandError(trouble)
        known = old or Settings(directory.cluster_name(data), directory.DEFAULT_PORT, *ranges.claim(data))
        asked = {"port": port or known.port, "nodes": nodes, "bare": known.bare if bare is None else bare}
        wanted = msgspec.structs.replace(known, **asked)
        directory.save(data, wanted)
    except OSError as error:
        step = next_step(error) or "Choose another --data."
        raise CommandError(f"{data} cannot be used: {error.strerror}", step) from None
    return wanted


def _check_place(data: Path, old: Settings | None, nodes: list[nodesfile.NodeSpec], port: int | None) -> None:
    if old and port not in (None, old.port) and is_running(data):
        raise CommandError(
            f"the cluster in {data} runs on port {old.port}",
            f"Stop it first (virtfleet down --data {data}), or choose another --data for a second cluster.",
        )
    longest = max((len(node.name) for node in nodes), default=0)
    if len(os.fsencode(data)) + len("/nodes//agent.sock") + longest > LONGEST_SOCKET:
        raise CommandError(f"{data} is too long a path for the sockets in it", "Choose a shorter --data.")
    if data.exists() and old is None and any(data.iterdir()):
        raise CommandError(f"{data} is not empty and holds no cluster", "Choose another --data.")


def _default_nodes() -> list[nodesfile.NodeSpec]:
    """One node; none for those who may not run containers."""
    return [nodesfile.NodeSpec("node-a")] if os.geteuid() == 0 else []


def _start_supervisor(data: Path, settings: Settings, progress: Progress) -> None:
    if is_running(data):
        return
    if not port_is_free(settings.port):
        raise CommandError(f"port {settings.port} is in use", "Choose another with: virtfleet up --port N")
    progress("starting the control plane")
    (data / "logs").mkdir(exist_ok=True)
    with (data / "logs" / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", supervisor.__name__, str(data)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    _until(lambda: is_running(data), lambda: _give_up(data, "supervisor"))


def _wait_for_api_server(data: Path, settings: Settings, progress: Progress) -> None:
    def ready() -> bool:
        child = _running(data)[CONTROL_PLANE]
        if child["restarts"] > 2:
            _give_up(data, CONTROL_PLANE)
        return child["running"] and not child["ending"] and readiness.why_api_unready(data) is None

    _until(ready, lambda: _give_up(data, CONTROL_PLANE))
    progress(f"the API server answers on https://127.0.0.1:{settings.port}")


def _running(data: Path) -> dict[str, dict[str, Any]]:
    return {child["name"]: child for child in supervisor.ask(data, op="status")["children"]}


def _remove_nodes(data: Path, settings: Settings, progress: Progress) -> None:
    """Take away nodes that run and are no longer asked for, with all their pods."""
    kept = {CONTROL_PLANE, *(node.name for node in settings.nodes)}
    leaving = [name for name in _running(data) if name not in kept]
    if not leaving:
        return
    from virtfleet.cli.home.node import take_away

    for name in leaving:
        take_away(data, settings, name)
        progress(f"{name} is gone")


def _start_nodes(data: Path, settings: Settings, progress: Progress) -> None:
    """Run an agent for every node, and wait until all of them say that they are ready."""
    if not settings.nodes:
        return
    if os.geteuid() != 0:
        raise CommandError("nodes run real containers, which needs root", "Run this as root, or with `nodes: []`.")
    for node in settings.nodes:
        processes.run_agent(data, settings, node.name)
    progress(f"starting {len(settings.nodes)} nodes")
    waiting = {node.name for node in settings.nodes}

    def all_ready() -> bool:
        with contextlib.suppress(ApiError):  # the supervisor brings the API server back
            for name in readiness.ask(data, partial(readiness.ready_nodes, settings, _running(data))) & waiting:
                waiting.remove(name)
                progress(f"{name} is ready")
        return not waiting

    _until(all_ready, lambda: _give_up(data, min(waiting)))


def _install(data: Path, settings: Settings, kubevirt: dict[str, Any] | None, progress: Progress) -> Settings:
    """VirtFleet itself, where there are nodes that could run it. The settings say what was installed."""
    if settings.bare or not settings.nodes:
        return settings
    from virtfleet.cli import installing
    from virtfleet.local import stock

    code = processes.fingerprint()
    # Where KVM does not work, CPUs are emulated: a machine to try things on may well be a VM itself.
    emulating = {"configuration": {"developerConfiguration": {"useEmulation": True}}}

    async def install(api: Client) -> None:
        await installing.install(api, kubevirt, progress, {}, {**installing.DEFAULT, "spec": emulating})
        # The operator is on its way meanwhile.
        await stock.fill(data / "images", progress)
        if settings.code not in ("", code):  # an older VirtFleet runs under the same name
            await installing.restart(api, progress, SETTLED_DEADLINE)

    with_cluster(install, Where(data / "kubeconfig"))
    settings = msgspec.structs.replace(settings, code=code)
    directory.save(data, settings)
    return settings


def _settle(data: Path, settings: Settings, progress: Progress) -> None:
    """Wait until what people do next will work, and tell what it waits for."""
    end = time.monotonic() + SETTLED_DEADLINE
    while reason := readiness.why_unready(data, settings, list(_running(data).values())):
        progress.news(reason)
        if time.monotonic() > end:
            raise CommandError(
                f"the cluster is not ready after {SETTLED_DEADLINE:.0f} s: {reason}",
                "Look at: kubectl get pods,events -A",
            )
        time.sleep(0.2)


def _installed(data: Path, settings: Settings) -> dict[str, str] | None:
    if settings.bare or not settings.nodes:
        return None
    [kubevirt, *_] = readiness.ask(data, lambda api: api.list(KUBEVIRTS))
    meta = kubevirt["metadata"]
    version = kubevirt["status"]["observedKubeVirtVersion"]
    return {"name": meta["name"], "namespace": meta["namespace"], "version": version}


def _until(condition: Callable[[], bool], otherwise: Callable[[], NoReturn]) -> None:
    deadline = time.monotonic() + START_DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            otherwise()
        time.sleep(0.02)


def _give_up(data: Path, component: str) -> NoReturn:
    with contextlib.suppress(OSError):
        if trouble := readiness.why_unwritable(data):
            raise CommandError(trouble)
    with contextlib.suppress(supervisor.NotRunning):
        if why := _running(data).get(component, {}).get("reason"):
            raise CommandError(f"{component} {why}", f"Its log: virtfleet logs --data {data} {component}")
    last = "\n".join(_words(line) for line in lines_of(data / "logs" / f"{component}.log", 15, follow=False))
    raise CommandError(
        f"the {component} does not start; its log ends with:\n{last}",
        f"All of it: virtfleet logs --data {data} {component}",
    )


def _words(line: str) -> str:
    """A line of a log as people read it."""
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError, TypeError):
        return line


def _how_to_use(data: Path, facts: dict[str, Any], seconds: float) -> str:
    return "\n".join(
        [
            f"The cluster is ready ({seconds} s). Its nodes: {', '.join(facts['nodes']) or 'none'}",
            "",
            f"  export KUBECONFIG={facts['kubeconfig']}",
            "  kubectl get nodes,pods,vmis -A",
            "",
            f"  virtfleet status --data {data}    what runs",
            f"  virtfleet down --data {data}      stop it",
        ]
    )
