"""What the guest is told of its networks: by DHCP, by DHCPv6, and by router advertisement (RFC 4861).

The last says that it has a router, and asks by DHCPv6. Its sockets come from whoever set up the Pod's network
(`rawsocket`) and are kept for as long as the VM lives, so that no restart of a handler takes the guest's default route
away.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from virtfleet.launcher.guestnet import dhcp, dhcp6
from virtfleet.launcher.guestnet.rawsocket import ADDRESS
from virtfleet.protocol.messages import Lease, Lease6, NodeFacts
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_LONGEST = 1 << 16
_DISCARD = 9  # the port of which nobody expects an answer
_SOLICITATION, _ADVERTISEMENT = 133, 134
_MANAGED_AND_MORE = 0xC0  # address and everything else are to be had by DHCPv6
_LIFETIME = 9000  # seconds; the longest there is
_PERIOD = 600.0  # between advertisements that nobody asked for
_HOPS = 255  # anything less has come through a router, and hosts do not believe it
_FOREVER = 0xFFFFFFFF
_ALL_NODES, _ALL_ROUTERS = "ff02::1", "ff02::2"
_FILTER = 1  # ICMP6_FILTER: a bit for each type that is not wanted


class Network:
    """Everything that tells the guest, for as long as it lives: one server for each lease, and the routers.

    The guest sees a router on each device whose socket has come and whose lease is known.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[object, str], tuple[Lease | Lease6, socket.socket]] = {}
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._routers: dict[str, socket.socket] = {}
        self._repeating = tasks.Owned()

    def start(self) -> None:
        """Take sockets for advertisements from now on."""
        self._channel.bind(ADDRESS)
        asyncio.get_running_loop().add_reader(self._channel, self._take)
        self._repeating.add(tasks.keep(self._repeat, "router advertisements"))

    def serve(self, node: NodeFacts) -> None:
        """Tell exactly what the handler decided. Asked again with the same, it changes nothing."""
        leases: list[Lease | Lease6] = [*node.leases, *node.leases6]
        wanted: dict[tuple[object, str], Lease | Lease6] = {(type(lease), lease.device): lease for lease in leases}
        for key, (lease, server) in list(self._servers.items()):
            if wanted.get(key) != lease:
                _end(server)
                del self._servers[key]
        for key, lease in wanted.items():
            if key not in self._servers:
                server = _listening(lease)
                asyncio.get_running_loop().add_reader(server, _answer, server, lease)
                self._servers[key] = (lease, server)
                self._advertise(lease.device)

    def close(self) -> None:
        self._repeating.cancel()
        for open_socket in (self._channel, *self._routers.values(), *(server for _, server in self._servers.values())):
            _end(open_socket)

    def _take(self) -> None:
        name, descriptors, _, _ = socket.recv_fds(self._channel, 64, 1)
        if not descriptors:
            return
        device = name.decode()
        if before := self._routers.pop(device, None):
            _end(before)
        raw = socket.socket(fileno=descriptors[0])
        try:
            _configure(raw, device)
        except OSError as error:
            logger.warning("the socket for router advertisements on %s is of no use: %s", device, error)
            raw.close()
            return
        self._routers[device] = raw
        asyncio.get_running_loop().add_reader(raw, self._solicited, device)
        self._advertise(device)

    def _solicited(self, device: str) -> None:
        self._routers[device].recv(1500)
        self._advertise(device)

    def _advertise(self, device: str) -> None:
        lease, _ = self._servers.get((Lease6, device), (None, None))
        if device in self._routers and isinstance(lease, Lease6):
            try:
                self._routers[device].sendto(advertisement(lease), (_ALL_NODES, 0))
            except OSError as error:  # the bridge has no address yet; the guest will ask again
                logger.info("no router advertisement on %s yet: %s", device, error)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD)
            for device in self._routers:
                self._advertise(device)


def _end(open_socket: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(open_socket)
    open_socket.close()


def _listening(lease: Lease | Lease6) -> socket.socket:
    """Where clients on the lease's device ask."""
    server = socket.socket(socket.AF_INET if isinstance(lease, Lease) else socket.AF_INET6, socket.SOCK_DGRAM)
    server.setblocking(False)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, lease.device.encode())
    if isinstance(lease, Lease):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        server.bind(("", dhcp.PORT))
    else:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        index = struct.pack("@I", socket.if_nametoindex(lease.device))
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, dhcp6.ALL_SERVERS + index)
        server.bind(("::", dhcp6.PORT))
    return server


def _answer(server: socket.socket, lease: Lease | Lease6) -> None:
    try:
        packet, sender = server.recvfrom(_LONGEST)
        if isinstance(lease, Lease):
            answer, sender = dhcp.reply(lease, packet), dhcp.EVERYBODY
        else:
            answer = dhcp6.reply(lease, packet)
        if answer:
            server.sendto(answer, sender)
    except BlockingIOError:
        return  # it was no whole packet
    except OSError as error:
        logger.warning("the guest is not told its %s on %s: %s", type(lease).__name__, lease.device, error)


def advertisement(lease: Lease6) -> bytes:
    """The packet; the kernel adds its checksum."""
    network = ipaddress.IPv6Interface(lease.address).network
    packet = struct.pack("!BBHBBHII", _ADVERTISEMENT, 0, 0, 64, _MANAGED_AND_MORE, _LIFETIME, 0, 0)
    # The prefix is on the link, and no place to choose addresses from: only one is translated.
    on_link = 0x80
    packet += struct.pack("!BBBBIII", 3, 4, network.prefixlen, on_link, _FOREVER, _FOREVER, 0)
    packet += network.network_address.packed
    if lease.mtu:
        packet += struct.pack("!BBHI", 5, 1, 0, lease.mtu)
    if lease.dns:
        packet += struct.pack("!BBHI", 25, 1 + 2 * len(lease.dns), 0, _LIFETIME)
        packet += b"".join(ipaddress.IPv6Address(server).packed for server in lease.dns)
    return packet


def _configure(raw: socket.socket, device: str) -> None:
    index = struct.pack("@I", socket.if_nametoindex(device))
    unwanted = [0xFFFFFFFF] * 8
    unwanted[_SOLICITATION // 32] ^= 1 << _SOLICITATION % 32
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_ICMPV6, _FILTER, struct.pack("@8I", *unwanted))
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOPS)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
    group = socket.inet_pton(socket.AF_INET6, _ALL_ROUTERS)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + index)


def announce() -> None:
    """A guest behind its Pod's address has come: a word to the Pod's routers tells the network where that is now.

    An unprivileged process may say one; the kernel looks for them first. A guest that has the Pod's place itself is
    announced by its hypervisor.
    """
    with suppress(OSError):
        for router in routers(Path("/proc/net/route").read_text()):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker, suppress(OSError):
                speaker.setblocking(False)
                speaker.sendto(b"", (router, _DISCARD))


def routers(table: str) -> Iterator[str]:
    """The gateways of the default routes in the kernel's own table."""
    for line in table.splitlines()[1:]:
        _, destination, gateway, *_ = line.split()
        if int(destination, 16) == 0 and int(gateway, 16):
            yield socket.inet_ntoa(struct.pack("<I", int(gateway, 16)))
