"""Which part of the cluster's pod addresses a node has: chosen once, when the node first starts, and kept."""

from __future__ import annotations

from ipaddress import IPv4Network

from virtfleet.local.directory import Settings
from virtfleet.local.node.containers import write_atomically
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.work.locks import locked

_FILE = "range"


def network_of(settings: Settings) -> ClusterNetwork:
    return ClusterNetwork(settings.name, IPv4Network(settings.pods), IPv4Network(settings.services))


def node_range(layout: Layout, net: ClusterNetwork) -> IPv4Network:
    layout.home.mkdir(parents=True, exist_ok=True)
    with locked(layout.data / "nodes" / ".ranges.lock"):
        taken = {path.parent.name: IPv4Network(path.read_text()) for path in layout.data.glob(f"nodes/*/{_FILE}")}
        if layout.node not in taken:
            number = next(n for n in range(1, 256) if net.node_range(n) not in taken.values())
            taken[layout.node] = net.node_range(number)
            write_atomically(layout.home / _FILE, str(taken[layout.node]).encode())
    return taken[layout.node]
