"""What a guest learns of IPv6: a router by the launcher's advertisements, its address by DHCPv6.

The Pod's network is set up by the handler's own helper, which hands the launcher its socket; the launcher is an
ordinary user, the guest another network namespace behind the Pod's bridge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from component.namespaces import Namespace
from tests.waiting import eventually
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.paths import USER
from virtfleet.handler.network.networks import Networks
from virtfleet.protocol.messages import Lease6, NodeFacts

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not os.path.exists("/dev/net/tun"), reason="needs root, nft and tun"
)

LAUNCHER = """
import asyncio, sys, msgspec
from virtfleet.protocol.messages import Lease6, NodeFacts
from virtfleet.launcher.guestnet.network import Network

async def main():
    network = Network()
    network.start()
    print("up", flush=True)
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    network.serve(msgspec.json.decode(line, type=NodeFacts))
    print("serving", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.readline)
    network.close()

asyncio.run(main())
"""
# A client that solicits, requests what it is offered, and prints its address.
CLIENT = """
import ipaddress, socket, struct
def option(code, value): return struct.pack("!HH", code, len(value)) + value
def options(data):
    found = {}
    while len(data) >= 4:
        code, length = struct.unpack_from("!HH", data)
        found[code], data = data[4:4 + length], data[4 + length:]
    return found
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.settimeout(2)
client.bind(("::", 546))
def ask(kind, *more):
    said = [option(1, b"\\0\\3\\0\\1guests"), option(3, b"iaid" + bytes(8)), *more]
    packet = bytes([kind]) + b"abc" + b"".join(said)
    client.sendto(packet, ("ff02::1:2", 547, 0, socket.if_nametoindex("eth0")))
    answer = client.recv(1500)
    assert answer[1:4] == b"abc"
    return answer[0], options(answer[4:])
kind, offered = ask(1)
assert kind == 2, kind
kind, given = ask(3, option(2, offered[2]))
assert kind == 7, kind
print(ipaddress.IPv6Address(options(given[3][12:])[5][:16]), ipaddress.IPv6Address(given[23]))
"""


VMI_BEHIND_THE_POD = read(
    VMI,
    {
        "metadata": {"name": "vm", "namespace": "default", "uid": "u1"},
        "spec": {
            "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
        },
    },
)


class Launcher:
    """The launcher's part of the network, as the user that launchers are."""

    def __init__(self, pod: Namespace) -> None:
        pod.run("sh", "-c", "echo 67 > /proc/sys/net/ipv4/ip_unprivileged_port_start", check=True)
        user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all")
        self._process = subprocess.Popen(
            pod.command(*user, sys.executable, "-c", LAUNCHER), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._expect(b"up\n")

    def serve(self, lease: Lease6) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(NodeFacts(leases6=[lease])) + b"\n")
        self._process.stdin.flush()
        self._expect(b"serving\n")

    def _expect(self, line: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def cluster() -> Iterator[Namespace]:
    found = Namespace()
    yield found
    found.close()


@pytest.fixture
def pod(cluster: Namespace) -> Iterator[Namespace]:
    found = Namespace()
    cluster.ip(
        f"link add toPod mtu 1400 type veth peer name eth0 mtu 1400 netns {found.process.number}",
        "addr add fd09::1/64 dev toPod nodad",
        "link set toPod up",
    )
    found.ip("link set eth0 up", "addr add fd09::7/64 dev eth0 nodad", "route add default via fd09::1")
    yield found
    found.close()


@pytest.fixture
def launcher(pod: Namespace) -> Iterator[Launcher]:
    found = Launcher(pod)
    yield found
    found.close()


@contextmanager
def plugged_in(pod: Namespace) -> Iterator[Namespace]:
    """A guest on the Pod's bridge that knows nothing yet."""
    found = Namespace()
    pod.ip(f"link add port type veth peer name eth0 netns {found.process.number}", "link set port master k6t-eth0 up")
    found.ip("link set eth0 up")
    try:
        yield found
    finally:
        found.close()


@pytest.mark.slow
async def test_a_guest_gets_its_router_by_advertisement_and_its_address_by_dhcpv6(
    tmp_path: Path, cluster: Namespace, pod: Namespace, launcher: Launcher
) -> None:
    (wired,) = await Networks(tmp_path).set_up(pod.process, VMI_BEHIND_THE_POD)
    assert wired.lease6
    launcher.serve(msgspec.structs.replace(wired.lease6, dns=["fd09::53"]))
    with plugged_in(pod) as guest:
        routes = eventually(lambda: json.loads(guest.show("-6", "-json", "route", "show", "default")), 30)
        assert (routes[0]["protocol"], routes[0]["dev"]) == ("ra", "eth0")
        assert json.loads(guest.show("-6", "-json", "route", "show", "fd10:0:2::/120"))
        assert guest.run("cat", "/proc/sys/net/ipv6/conf/eth0/mtu").stdout == "1400\n"
        answer = eventually(lambda: guest.run(sys.executable, "-c", CLIENT).stdout.split(), 30)
        assert answer == ["fd10:0:2::2", "fd09::53"]
        guest.ip("addr add fd10:0:2::2/128 dev eth0 nodad")
        with cluster.serving(80, "::"):
            assert eventually(lambda: guest.ask("fd09::1", 80)) == "fd09::7", "through the Pod's address"
