"""`virtfleet down` and `status`: the cluster on one machine, and what all commands see of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from virtfleet.cli.home import readiness
from virtfleet.cli.output import CommandError, F, Progress, bad, good, on_interrupt, output_option, result, table
from virtfleet.cli.reach import Where
from virtfleet.local import directory, supervisor
from virtfleet.local.directory import Settings


def data_option(function: F) -> F:
    """The `--data DIR` that names a cluster."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
        default=directory.default_directory,
        show_default="/var/lib/virtfleet",
        help="The cluster's directory.",
    )(function)


@click.command()
@data_option
@click.option("--wipe", is_flag=True, help="Remove the cluster's directory too: its objects, volumes and images.")
@output_option
def down(data: Path, wipe: bool, output: str) -> None:
    """Stop the cluster. What it keeps stays for the next `up`, unless --wipe is given."""
    progress = Progress(quiet=output == "json")
    settings = load(data)
    on_interrupt("the cluster may be stopped in part. Repeat the command to stop the rest; `virtfleet up` starts it.")
    try:
        supervisor.ask(data, op="stop", timeout=120)
        stopped = True
    except supervisor.NotRunning:
        stopped = False
    progress("the cluster is stopped" if stopped else "no cluster was running")
    if settings is not None:
        _clear(data, settings, progress)
        if wipe:
            _wipe(data)
            progress(f"{data} is {'empty' if data.exists() else 'removed'}")
    result(output, {"stopped": stopped, "wiped": wipe and settings is not None, "data": str(data)}, "")


@click.command()
@data_option
@output_option
def status(data: Path, output: str) -> None:
    """What runs, and how it is. Ends with 1 where the cluster is not ready."""
    facts = facts_of(data, load_existing(data))
    rows = [
        [p["name"], "running" if p["running"] else bad("down"), p["pid"], p["restarts"], _mib(p["rss"]), p["reason"]]
        for p in facts["processes"]
    ]
    text = f"cluster {facts['name']} in {data}: {good('ready') if facts['ready'] else bad('not ready')}"
    if rows:
        text += "\n" + table(rows, ["PROCESS", "STATE", "PID", "RESTARTS", "RSS", "LAST RESTART"])
    if not facts["ready"]:
        text += f"\n{facts['reason']}\nBring it to what was asked for with: virtfleet up --data {data}"
    result(output, facts, text)
    if not facts["ready"]:
        sys.exit(1)


# Stopping.


def _clear(data: Path, settings: Settings, progress: Progress) -> None:
    """Take away what the cluster made outside its directory, whoever was killed before."""
    if os.geteuid() != 0:
        return
    import asyncio

    from virtfleet.local.node.network import network_of
    from virtfleet.local.node.teardown import tear_down

    asyncio.run(tear_down(data, network_of(settings)))
    progress("its pods, networks and mounts are gone")


def _wipe(data: Path) -> None:
    """Remove the directory; what marks it as a cluster's goes last, so that a killed `down` can be repeated."""
    from virtfleet.local.node import mounts

    if left := [point for point in mounts.below(data) if point != str(data)]:
        # Removing the directory would remove what is mounted there.
        raise CommandError(f"these are still mounted: {', '.join(left)}", "Unmount them, then repeat the command.")
    for entry in data.iterdir():
        if entry.name != directory.MARK:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (data / directory.MARK).unlink()
    if not data.is_mount():  # somebody else's mount stays, empty
        data.rmdir()


# Looking.


def load(data: Path) -> Settings | None:
    try:
        return directory.load(data)
    except ValueError as error:
        raise CommandError(
            f"{data / directory.MARK} cannot be read: {error}", "Mend it, or remove the directory for a new cluster."
        ) from None


def load_existing(data: Path) -> Settings:
    """The settings of a cluster that must be there."""
    if (settings := load(data)) is None:
        raise CommandError(f"there is no cluster in {data}", "Start one with: virtfleet up")
    return settings


def children(data: Path) -> list[dict[str, Any]] | None:
    """The processes that the cluster's supervisor runs; None where there is no supervisor."""
    try:
        processes: list[dict[str, Any]] = supervisor.ask(data, op="status")["children"]
    except supervisor.NotRunning:
        return None
    return processes


def is_running(data: Path) -> bool:
    return children(data) is not None


def or_of(data: Path, where: Where) -> Where:
    """The cluster that is named, else that of the directory, where there is one."""
    kubeconfig = data / "kubeconfig"
    return Where(kubeconfig) if where == Where() and kubeconfig.exists() else where


def facts_of(data: Path, settings: Settings) -> dict[str, Any]:
    processes = children(data) or []
    reason = readiness.why_unready(data, settings, processes) if processes else "no process of it is running"
    return {
        "name": settings.name,
        "data": str(data),
        "kubeconfig": str(data / "kubeconfig"),
        "server": f"https://127.0.0.1:{settings.port}",
        "ready": reason is None,
        "reason": reason or "",
        "nodes": [n.name for n in settings.nodes],
        "processes": [{**c, "rss": _rss(c["pid"])} for c in processes],
    }


def _rss(pid: int | None) -> int | None:
    with contextlib.suppress(OSError, IndexError, TypeError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / (1 << 20):.0f} MiB"


def lines_of(path: Path, tail: int | None, follow: bool) -> Iterator[str]:
    """A file's lines, perhaps only the last, perhaps going on as it grows."""
    with path.open(errors="replace") as file:
        lines = file.read().splitlines()
        yield from lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
        while follow:
            if line := file.readline():
                yield line.rstrip("\n")
            else:
                time.sleep(0.1)
