"""Takes away what nodes made on this machine, found by name and place: it makes no difference who was killed before.

Agents must have ended already. `power_off` is the power failure of one node: its processes, mounts and namespaces are
gone, its disk stays. `tear_down` lets every node's pods end in grace, does that to all nodes and removes the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path

from virtfleet.local.node import cgroups, loops, mounts, network, secondary
from virtfleet.local.node.containers import Container, records
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.runtime import boot_id, kill_monitor, pidfd, remove_group, start_time

_PATIENCE, _LOOK = 10.0, 0.05  # seconds that pods have to end, however long they would like; and between two looks


async def power_off(layout: Layout, net: ClusterNetwork) -> None:
    for path in layout.containers.glob("*"):
        kill_monitor(path)
    cgroups.kill_all(layout.cgroup)
    await remove_group(layout.cgroup)
    loops.release(layout)
    mounts.unshare(layout.root)
    for path in layout.containers.glob("*"):
        mounts.unmount_below(path)
    for sandbox in list(layout.sandboxes.glob("*")):
        await network.delete_link(net.interface(sandbox.name))
        await secondary.detach_all(net, sandbox)
        mounts.remove_tree(sandbox)
    mounts.remove_tree(layout.runtime)


async def tear_down(data: Path, net: ClusterNetwork) -> None:
    """Everything of the cluster but its directory, and what others mounted there."""
    homes = sorted(path for path in (data / "nodes").glob("*/"))
    nodes = [Layout(data, net.cluster, home.name) for home in homes]
    boot, known = boot_id(), [run for node in nodes for _, run in records(node.containers) if run]
    await asyncio.gather(*(_end_in_grace(run) for run in known if run.running and run.boot == boot))
    for node in nodes:
        await power_off(node, net)
    await network.tear_down(net)
    await remove_group(f"/virtfleet/{net.cluster}")
    cgroups.remove_if_empty("/virtfleet")


async def _end_in_grace(run: Container) -> None:
    """Ask a container to end, and wait until its monitor has written down how it did. No hook is run any more."""
    until = time.monotonic() + min(run.grace, _PATIENCE)
    with pidfd(run.pid, run.pid_start) as process, contextlib.suppress(ProcessLookupError):
        if process is not None and run.grace:
            signal.pidfd_send_signal(process, run.stop_number)
            while time.monotonic() < until and start_time(run.monitor) == run.monitor_start:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)
