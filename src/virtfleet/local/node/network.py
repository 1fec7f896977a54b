"""The pod network of a cluster: one bridge, an address range per node, a pair of interfaces per pod.

Every pod has a /32 address and sends everything to the bridge's own address, also what is for a neighbour. That way
all traffic is routed by the machine, replies included, and Services work by plain destination NAT with the source
address kept. Interfaces and tables carry names made from the cluster's name; `tear_down` needs nothing else.
"""

from __future__ import annotations

import hashlib
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import orjson

from virtfleet.api.addresses import mac_address
from virtfleet.local.directory import Settings
from virtfleet.local.node.containers import write_atomically
from virtfleet.local.node.layout import Layout
from virtfleet.work.commands import CommandError, run
from virtfleet.work.locks import locked

PODS, SERVICES = IPv4Network("10.244.0.0/16"), IPv4Network("10.96.0.0/16")
_MTU = 1500
_NODE_PREFIX = 24
_RANGE = "range"  # file with the addresses of a node
_SILENT = "virtfleet-silent"  # table in the namespace of a pod that another one has the addresses of


class ClusterNetwork:
    """The addresses and names of one cluster's network."""

    def __init__(self, cluster: str, pods: IPv4Network = PODS, services: IPv4Network = SERVICES) -> None:
        digest = hashlib.sha256(cluster.encode())
        self.cluster, self.pods, self.services = cluster, pods, services
        self.pods6 = IPv6Network((b"\xfd" + digest.digest()[:7] + bytes(8), 64))
        self.gateway = pods[1]  # the bridge's address, where the API server listens for pods
        self.tag = "vf" + digest.hexdigest()[:6]  # of interface names, which the kernel limits to 15 characters
        self.bridge = f"{self.tag}-br"
        self.table = f"virtfleet-{self.tag}"

    def node_range(self, index: int) -> IPv4Network:
        """The pod addresses of the node with this number, counted from 1; number 0 is the cluster's own."""
        size = 1 << (32 - _NODE_PREFIX)
        start = self.pods.network_address + index * size
        if index < 1 or start not in self.pods:
            raise ValueError(f"{self.pods} has no room for a node number {index}")
        return IPv4Network((start, _NODE_PREFIX))

    def address6(self, address: IPv4Address) -> IPv6Address:
        return self.pods6[int(address) - int(self.pods.network_address)]

    def interface(self, pod_uid: str) -> str:
        return f"{self.tag}{hashlib.sha256(pod_uid.encode()).hexdigest()[:7]}"


def network_of(settings: Settings) -> ClusterNetwork:
    return ClusterNetwork(settings.name, IPv4Network(settings.pods), IPv4Network(settings.services))


def range_of(layout: Layout, net: ClusterNetwork) -> IPv4Network:
    """The pod addresses of a node: chosen once, when the node first starts, and kept."""
    layout.home.mkdir(parents=True, exist_ok=True)
    with locked(layout.data / "nodes" / ".ranges.lock"):
        taken = {path.parent.name: IPv4Network(path.read_text()) for path in layout.data.glob(f"nodes/*/{_RANGE}")}
        if layout.node not in taken:
            ranges = map(net.node_range, range(1, 256))
            taken[layout.node] = next(each for each in ranges if each not in taken.values())
            write_atomically(layout.home / _RANGE, str(taken[layout.node]).encode())
    return taken[layout.node]


def node_address(node_range: IPv4Network) -> IPv4Address:
    """The node's own address, an additional one of the bridge."""
    return node_range[1]


async def set_up(network: ClusterNetwork, node_range: IPv4Network | None = None) -> None:
    """The bridge, and a node's address on it. May be repeated at any time."""
    # With a fixed address: a bridge otherwise takes that of whichever interface joined first, and changes it.
    await add_link(network.bridge, f"address {mac_address('bridge', network.bridge)} type bridge")
    commands = [
        f"link set {network.bridge} mtu {_MTU} up",
        f"addr replace {network.gateway}/{network.pods.prefixlen} dev {network.bridge}",
        f"route replace {network.services} dev {network.bridge} src {network.gateway}",
    ]
    if node_range is not None:
        commands.append(f"addr replace {node_address(node_range)}/32 dev {network.bridge}")
    if has_ipv6():
        commands.append(f"addr replace {network.address6(network.gateway)}/64 dev {network.bridge} nodad")
    await run("ip", "-batch", "-", feed="\n".join(commands))
    # Forward what pods send; the machine's other interfaces keep their setting.
    sysctl(f"net/ipv4/conf/{network.bridge}/forwarding", "1")


def pod_interfaces(network: ClusterNetwork, pod_uid: str, address: IPv4Address) -> str:
    """What `ip -batch` does in a pod's network namespace: the pair of interfaces, the pod's addresses and routes."""
    name = network.interface(pod_uid)
    machine = f"/proc/{threading.get_native_id()}/ns/net"
    mac = f"0a:58:{address.packed.hex(':')}"  # so that neighbours that knew the pod before this one are not misled
    commands = [
        f"link add eth0 mtu {_MTU} address {mac} type veth peer name {name} mtu {_MTU} netns {machine}",
        "link set lo up",
        "link set eth0 up",
        f"addr add {address}/32 dev eth0",
        f"route add {network.gateway} dev eth0 scope link",
        f"route add default via {network.gateway} dev eth0",
    ]
    if has_ipv6():
        commands.append(f"addr add {network.address6(address)}/64 dev eth0 nodad")
    return "\n".join(commands)


async def attach(network: ClusterNetwork, pod_uid: str, *, follows: bool = False) -> None:
    """Put the machine's end of a pod's pair of interfaces on the bridge.

    One that follows another under the same addresses hears nothing that is for everybody, so that it answers nobody;
    the first word that its guest says tells the bridge where to look for the addresses from then on.
    """
    name, heard = network.interface(pod_uid), "off" if follows else "on"
    commands = [
        f"link set {name} master {network.bridge}",
        # Where the kernel filters bridged packets too, a pod's call of itself is sent back out of the same port.
        f"link set {name} type bridge_slave hairpin on flood {heard} mcast_flood {heard} bcast_flood {heard}",
        f"link set {name} up",
    ]
    await run("ip", "-batch", "-", feed="\n".join(commands))


async def silence(namespace: Path) -> None:
    """Have a pod's kernel say nothing by IPv6, which it would by itself, under addresses that another pod has."""
    if has_ipv6():
        chain = f"ip6 {_SILENT} output"
        rules = f"add chain {chain} {{ type filter hook output priority 0 ; }} ; add rule {chain} oifname eth0 drop"
        await run("nsenter", f"--net={namespace}", "nft", f"add table ip6 {_SILENT} ; {rules}")


async def hand_over(network: ClusterNetwork, old_uid: str, new_uid: str, namespace: Path) -> None:
    """Have one pod instead of another on the bridge."""
    await _unless_gone(network.interface(old_uid), "set", "nomaster")
    await attach(network, new_uid)
    if has_ipv6():
        anyway = f"add table ip6 {_SILENT} ; delete table ip6 {_SILENT}"  # it may be gone already
        await run("nsenter", f"--net={namespace}", "nft", anyway)


async def tear_down(network: ClusterNetwork) -> None:
    """Remove every interface, route and rule of the cluster; what is not there is fine."""
    for link in orjson.loads(await run("ip", "-json", "link", "show") or "[]"):
        if link["ifname"].startswith(network.tag):
            await delete_link(link["ifname"])
    await run("nft", "-f", "-", feed=f"table ip {network.table}\ndelete table ip {network.table}\n")


async def add_link(name: str, how: str) -> None:
    """Unless it is there. `how` is what `ip link add` is told."""
    if not await exists(name):
        try:
            await run("ip", "link", "add", name, *how.split())
        except CommandError:  # another agent was faster
            if not await exists(name):
                raise


async def delete_link(name: str) -> None:
    """A pod's may have gone with its namespace already."""
    await _unless_gone(name, "delete")


async def _unless_gone(name: str, action: str, *how: str) -> None:
    try:
        await run("ip", "link", action, name, *how)
    except CommandError:
        if await exists(name):
            raise


async def exists(name: str) -> bool:
    try:
        await run("ip", "link", "show", "dev", name)
    except CommandError:
        return False
    return True


def sysctl(name: str, value: str) -> None:
    Path("/proc/sys", name).write_text(value)


def has_ipv6() -> bool:
    return Path("/proc/sys/net/ipv6/conf").is_dir()
