"""Takes away what nodes made on this machine, found by name and place: it makes no difference who was killed before.

Agents must have ended already. `power_off` is the power failure of one node: its processes, mounts and namespaces are
gone, its disk stays. `tear_down` does that to every node and removes the network too.
"""

from __future__ import annotations

from pathlib import Path

from virtfleet.local.node import cgroups, mounts, network
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.runtime import kill_monitor, remove_group


async def power_off(layout: Layout, net: ClusterNetwork) -> None:
    if layout.containers.is_dir():
        for path in layout.containers.iterdir():
            kill_monitor(path)
    cgroups.kill_all(layout.cgroup)
    await remove_group(layout.cgroup)
    mounts.unmount_below(layout.home)
    if layout.sandboxes.is_dir():
        for sandbox in list(layout.sandboxes.iterdir()):
            await network.detach(net, sandbox.name)
            mounts.remove_tree(sandbox)
    for left in (layout.runtime, layout.exits):
        mounts.remove_tree(left)


async def tear_down(data: Path, net: ClusterNetwork) -> None:
    """Everything of the cluster but its directory."""
    if (data / "nodes").is_dir():
        for home in sorted(path for path in (data / "nodes").iterdir() if path.is_dir()):
            await power_off(Layout(data, net.cluster, home.name), net)
    await network.tear_down(net)
    mounts.unmount_below(data)
    await remove_group(f"/virtfleet/{net.cluster}")
    cgroups.remove_if_empty("/virtfleet")
