"""How fast pods come up on a local node, how much its agent weighs, and how fast nodes are there.

Everything goes the way that people's pods go: HTTPS to the API server, scheduler, agent, runc under conmon, and back
through a watch. The baseline is bare runc with the least that a bundle may hold, in the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.observer import Observed, has_condition, observing, percentile
from bench.report import Figure
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS
from virtfleet.local import supervisor

TITLE = "local nodes: pods' way to Ready, agents' weight"

ONE_BY_ONE, AT_ONCE, NODES = 20, 50, 5
REST = 10.0
DEADLINE = 120.0
NAMESPACE = "default"


@contextmanager
def cluster(nodes: list[str], *options: str) -> Iterator[tuple[Path, float]]:
    """The directory of a cluster with these nodes, and the seconds until they were ready. Gone afterwards.

    A Kubernetes alone, unless `options` of `virtfleet up` say otherwise.
    """
    virtfleet = str(Path(sys.executable).with_name("virtfleet"))
    place = Path(tempfile.mkdtemp(prefix="vfb"))
    data, nodes_file = place / "c", place / "nodes.yaml"
    nodes_file.write_text(json.dumps({"nodes": [{"name": name} for name in nodes]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A bench that is told to end must still take its cluster with it.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        began = time.monotonic()
        where = ["--data", str(data), "--port", str(port), "--nodes", str(nodes_file)]
        subprocess.run([virtfleet, "up", *where, *(options or ["--bare"])], check=True, capture_output=True)
        yield data, time.monotonic() - began
    finally:
        subprocess.run([virtfleet, "down", "--data", str(data), "--wipe"], check=True, capture_output=True)
        shutil.rmtree(place)
        signal.signal(signal.SIGTERM, before)


def install(data: Path) -> float:
    """Install VirtFleet into a cluster, or find that it is; seconds until VMs can be made."""
    command = [str(Path(sys.executable).with_name("virtfleet")), "up", "--data", str(data), "--no-bare", "-o", "json"]
    seconds: float = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["seconds"]
    return seconds


def pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "host", "command": ["/usr/bin/sleep", "infinity"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


class BareRunc:
    """`runc run` for a program in a bundle that shows it /usr and nothing else."""

    def __init__(self, place: Path) -> None:
        self._bundle, self._runc = place / "bundle", ["runc", "--root", str(place / "root")]
        root = self._bundle / "rootfs"
        root.mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        description = {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs"},
            "process": {"args": ["/usr/bin/sleep", "infinity"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
            ],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "network", "ipc", "uts")]},
        }
        (self._bundle / "config.json").write_text(json.dumps(description))

    def run(self) -> float:
        """Milliseconds."""
        name = f"vfb-{os.getpid()}"
        try:
            began = time.monotonic()
            subprocess.run([*self._runc, "run", "--detach", "--bundle", str(self._bundle), name], check=True, **_QUIET)
            return (time.monotonic() - began) * 1000
        finally:
            subprocess.run([*self._runc, "delete", "--force", name], check=True, **_QUIET)


_QUIET: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,  # and no pipe: the container would hold it open
    "stderr": subprocess.DEVNULL,
}


async def one_by_one(api: Client, observed: Observed, bare: BareRunc) -> tuple[list[float], list[float]]:
    """Milliseconds from before the create to the Ready condition, and those of bare runc in between, each sorted.

    The first pod is not counted.
    """
    took, baseline = [], []
    for number in range(ONE_BY_ONE + 1):
        baseline.append(bare.run())
        name = f"one-{number}"
        began = time.monotonic()
        await api.create(PODS, pod(name))
        [ready] = await observed.until("ready", [name])
        took.append((ready - began) * 1000)
        await api.delete(PODS, name, NAMESPACE)
        await observed.until_gone([name])
    return sorted(took[1:]), sorted(baseline[1:])


async def at_once(api: Client, observed: Observed) -> list[float]:
    """Seconds until each of many pods that were created together was Ready, sorted."""
    names = [f"many-{number}" for number in range(AT_ONCE)]
    began = time.monotonic()
    await asyncio.gather(*(api.create(PODS, pod(name)) for name in names))
    return sorted(ready - began for ready in await observed.until("ready", names))


def agent(data: Path, node: str) -> int:
    """The process id of a node's agent."""
    children = supervisor.ask(data, op="status")["children"]
    return next(int(child["pid"]) for child in children if child["name"] == node)


def rss(pid: int) -> float:
    """MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def cpu(pid: int) -> float:
    """Seconds used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run() -> list[Figure]:
    if os.geteuid() != 0:
        print("  nodes run real containers, which needs root: nothing is measured", file=sys.stderr)
        return []
    with cluster(["bench"]) as (data, _):
        pid = agent(data, "bench")
        idle = rss(pid)
        async with (
            Client(config.load(data / "kubeconfig")) as api,
            observing(api, PODS, NAMESPACE, DEADLINE, ready=lambda pod: has_condition(pod, "Ready")) as observed,
        ):
            alone, bare = await one_by_one(api, observed, BareRunc(data.parent / "bare"))
            together = await at_once(api, observed)
            loaded = rss(pid)
            used = cpu(pid)
            await asyncio.sleep(REST)
            resting = (cpu(pid) - used) / REST * 100
    with cluster([f"bench-{number}" for number in range(NODES)]) as (_, start):
        pass
    runc = percentile(bare, 50)
    return [
        Figure("one pod to Ready, p50", percentile(alone, 50), "ms", runc, "bare runc run"),
        Figure("one pod to Ready, p95", percentile(alone, 95), "ms", percentile(bare, 95), "bare runc run"),
        Figure("more than bare runc, p50", percentile(alone, 50) - runc, "ms", aim="at most 150"),
        Figure(f"{AT_ONCE} pods at once to Ready, p50", percentile(together, 50), "s"),
        Figure(
            f"{AT_ONCE} pods at once to Ready, all", together[-1], "s", runc * AT_ONCE / 1000, "that many bare runc run"
        ),
        Figure("agent's memory, idle", idle, "MiB", aim="under 60"),
        Figure(f"agent's memory, {AT_ONCE} pods", loaded, "MiB", aim="under 60"),
        Figure(f"agent's processor with {AT_ONCE} pods at rest", resting, "%", aim="near 0"),
        Figure(f"{NODES} nodes to Ready, control plane included", start, "s", aim="a few seconds"),
    ]
