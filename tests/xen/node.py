"""The dom0 as a node of a local cluster: an agent in it, and a link to the machine that has the rest of the cluster.

Addresses of Pods are routed between the two, each of which has the Pods of its own nodes on a bridge. What a Pod of the
dom0 sends to a Service goes to the other machine, which knows where Services lead to.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from virtfleet.local import directory
from virtfleet.local.identities import cluster_ip, open_pki
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import network_of, range_of, sysctl
from virtfleet.local.nodesfile import NodeSpec
from xen.machine import LIMIT, TREE, Shell

TAP = "vf-dom0"
_HERE, _THERE = "10.255.255.1", "10.255.255.2"
_BRIDGE_ADDRESS = "0a:00:00:00:00:01"  # any: without one, it is that of some interface, and changes
_DATA = "/var/lib/virtfleet"
_API_PORT = 443
# The images of components are of the dom0's own /usr. Those of guests, which cannot be built there, are there already.
_STOCK = f'''
import asyncio, pathlib
from virtfleet.local import stock
asyncio.run(stock.fill(pathlib.Path("{_DATA}/images"), print))
'''
LOG = "/var/log/agent"


@contextmanager
def link() -> Iterator[str]:
    """An interface for the machine of the dom0, which is there as long as the context."""
    _ip("tuntap", "add", TAP, "mode", "tap")
    try:
        _ip("addr", "add", f"{_HERE}/30", "dev", TAP)
        _ip("link", "set", TAP, "up")
        sysctl(f"net/ipv4/conf/{TAP}/forwarding", "1")
        yield TAP
    finally:
        _ip("link", "delete", TAP)


def join(data: Path, spec: NodeSpec, dom0: Shell, files: Path) -> None:
    """Make the dom0 a node of the cluster in `data`. `files` is a directory of this machine that the dom0 sees."""
    settings = directory.load(data)
    assert settings is not None
    net, pki = network_of(settings), open_pki(data, settings)
    layout = Layout(data, settings.name, spec.name)
    addresses = range_of(layout, net)
    _ip("route", "add", str(addresses), "via", _THERE)
    shutil.copy(data / directory.MARK, files)
    (files / "kubeconfig").write_text(
        pki.kubeconfig(f"https://{cluster_ip(settings)}:{_API_PORT}", pki.node(spec.name))
    )
    subprocess.run(["cp", "-a", str(layout.images), str(files)], check=True, timeout=120)

    home = f"{_DATA}/nodes/{spec.name}"
    # Halves, because the agent makes the bridge the way to all of it.
    elsewhere = [half for network in (net.pods, net.services) for half in network.subnets()]
    for command in (
        f"ip addr add {_THERE}/30 dev eth0",
        "ip link set eth0 up",
        *(f"ip route add {half} via {_HERE}" for half in elsewhere),
        f"ip link add {net.bridge} address {_BRIDGE_ADDRESS} type bridge",
        f"ip link set {net.bridge} up",
        f"ip route add {addresses} dev {net.bridge}",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        f"mkdir -p {home}",
        f"printf %s {addresses} > {home}/range",
        f"cp {files}/{directory.MARK} {_DATA}",
        f"cp -a {files}/images {_DATA}",
    ):
        dom0.run(command)
    node = shlex.quote(msgspec.json.encode(spec).decode())
    dom0.run(f"{TREE}/.venv/bin/python -c {shlex.quote(_STOCK)}", LIMIT)
    agent = f"virtfleet.local.node --data {_DATA} --kubeconfig {files}/kubeconfig --node {node}"
    dom0.run(f"setsid {TREE}/.venv/bin/python -m {agent} >{LOG} 2>&1 &")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)
