"""What the guest is told of its networks: by DHCP, by DHCPv6, and by router advertisement."""

from __future__ import annotations

import asyncio
import logging
import socket

from virtfleet.launcher.guestnet import dhcp, dhcp6
from virtfleet.launcher.guestnet.router import Routers
from virtfleet.protocol.messages import Lease, Lease6, NodeFacts

logger = logging.getLogger(__name__)

_LONGEST = 1 << 16


class Network:
    """Everything that tells the guest, for as long as it lives: one server for each lease, and the routers."""

    def __init__(self) -> None:
        self._servers: dict[tuple[object, str], tuple[Lease | Lease6, socket.socket]] = {}
        self._routers = Routers()

    def start(self) -> None:
        self._routers.start()

    def serve(self, node: NodeFacts) -> None:
        """Tell exactly what the handler decided. Asked again with the same, it changes nothing."""
        leases: list[Lease | Lease6] = [*node.leases, *node.leases6]
        wanted: dict[tuple[object, str], Lease | Lease6] = {(type(lease), lease.device): lease for lease in leases}
        for key, (lease, _) in list(self._servers.items()):
            if wanted.get(key) != lease:
                self._end(key)
        for key, lease in wanted.items():
            if key not in self._servers:
                server = dhcp.listen(lease) if isinstance(lease, Lease) else dhcp6.listen(lease)
                server.setblocking(False)
                asyncio.get_running_loop().add_reader(server, _answer, server, lease)
                self._servers[key] = (lease, server)
        self._routers.serve(node.leases6)

    def close(self) -> None:
        for key in list(self._servers):
            self._end(key)
        self._routers.close()

    def _end(self, key: tuple[object, str]) -> None:
        _, server = self._servers.pop(key)
        asyncio.get_running_loop().remove_reader(server)
        server.close()


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
