"""Carries out a network plan. Run as a process of its own inside the network namespace of a launcher's Pod.

Namespaces belong to threads, and a process that speaks gRPC has many; so the handler starts this for the few moments
that it takes, through nsenter. What the Pod's interfaces were at first is written to a file before anything is changed:
a plan that was interrupted is made again from that file, not from what was left half done.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from virtfleet.handler.network.plan import InterfaceRequest, Link, Plan, Route, plan, undo
from virtfleet.launcher.guestnet.rawsocket import hand_over

_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17
_LIMIT = 20.0  # seconds that one command has; all of them together have what the handler gives this process


class Order(msgspec.Struct, frozen=True):
    """What the handler wants done, and where the Pod's first state is kept."""

    requests: list[InterfaceRequest]
    memory: str
    undo: list[InterfaceRequest] = []
    """What is to be as it was before."""


def inspect() -> tuple[dict[str, Link], dict[str, str]]:
    """The interfaces of this namespace, and of which kind they are."""
    links = msgspec.json.decode(_run("ip", "-json", "-details", "addr", "show"))
    routes = msgspec.json.decode(_run("ip", "-json", "-4", "route", "show") or b"[]")
    interfaces = {}
    for link in links:
        name, addresses = link["ifname"], link.get("addr_info", ())
        interfaces[name] = Link(
            name,
            link.get("address", ""),
            link.get("mtu", 1500),
            [f"{a['local']}/{a['prefixlen']}" for a in addresses if a.get("scope") == "global"],
            [Route(_network(r["dst"]), r.get("gateway", "")) for r in routes if r.get("dev") == name],
        )
    return interfaces, {link["ifname"]: link.get("linkinfo", {}).get("info_kind", "") for link in links}


def _network(dst: str) -> str:
    return "0.0.0.0/0" if dst == "default" else dst if "/" in dst else f"{dst}/32"


def first_state(memory: Path, now: dict[str, Link], wanted: Iterable[str]) -> dict[str, Link]:
    """The interfaces as they were before anything was done here, those that came later as they came."""
    known = msgspec.json.decode(memory.read_bytes(), type=dict[str, Link]) if memory.exists() else None
    first = now if known is None else {**{name: now[name] for name in wanted if name in now}, **known}
    if first != known:
        remember(memory, first)
    return first


def remember(memory: Path, first: dict[str, Link]) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    temporary = memory.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(first))
    temporary.replace(memory)


def carry_out(made: Plan) -> None:
    for command in made.commands:
        # One by one and not as a batch, which would go on after links it has just renamed under their old names.
        _run("ip", *command.split())
    for bridge in made.bridges:
        _compute_checksums(bridge)
    for name, value in made.sysctls.items():
        Path("/proc/sys", name).write_text(value)
    if made.rules:
        _run("nft", "-f", "-", feed=made.rules.encode())
    for bridge in made.routers:
        hand_over(bridge)


def _compute_checksums(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        value = array.array("B", struct.pack("II", _ETHTOOL_STXCSUM, 0))
        request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


def _run(*command: str, feed: bytes = b"") -> bytes:
    try:
        done = subprocess.run(command, input=feed, capture_output=True, check=False, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)}: not done within {_LIMIT:.0f} s") from None
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        now, kinds = inspect()
        first = first_state(Path(order.memory), now, [nic.link for nic in order.requests])
        if missing := [nic for nic in order.requests if nic.link not in first]:
            said = f"the Pod has no interface {missing[0].link} for network {missing[0].name!r}: nobody has attached it"
            raise OSError(f"{said}. Install Multus in the cluster, or remove the network from the VM")
        carry_out(plan(order.requests, first, now.keys()))
        for nic in order.undo:
            if nic.link in first:
                carry_out(Plan(undo(nic, first[nic.link], kinds)))
                del first[nic.link]
                remember(Path(order.memory), first)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(first))
    sys.stdout.flush()
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
