"""What the guest is told of its networks: by DHCP, by DHCPv6, and by router advertisement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from virtfleet.launcher.guestnet import dhcp, dhcp6
from virtfleet.launcher.guestnet.router import Routers
from virtfleet.protocol.messages import Lease, Lease6, NodeFacts

L = TypeVar("L", bound=Lease | Lease6)


class Network:
    """Everything that tells the guest, for as long as it lives."""

    def __init__(self) -> None:
        self._dhcp = Servers[Lease](dhcp.listen)
        self._dhcp6 = Servers[Lease6](dhcp6.listen)
        self._routers = Routers()

    def start(self) -> None:
        self._routers.start()

    async def serve(self, node: NodeFacts) -> None:
        """Tell exactly what the handler decided. Asked again with the same, it changes nothing."""
        await self._dhcp.serve(node.leases)
        await self._dhcp6.serve(node.leases6)
        self._routers.serve(node.leases6)

    def close(self) -> None:
        self._dhcp.close()
        self._dhcp6.close()
        self._routers.close()


class Servers(Generic[L]):
    """One server per device."""

    def __init__(self, listen: Callable[[L], Awaitable[asyncio.DatagramTransport]]) -> None:
        self._listen = listen
        self._running: dict[str, tuple[L, asyncio.DatagramTransport]] = {}

    async def serve(self, leases: Iterable[L]) -> None:
        """Hand out exactly these leases."""
        wanted = {lease.device: lease for lease in leases}
        for device, (lease, transport) in list(self._running.items()):
            if wanted.get(device) != lease:
                transport.close()
                del self._running[device]
        for device, lease in wanted.items():
            if device not in self._running:
                self._running[device] = (lease, await self._listen(lease))

    def close(self) -> None:
        for _, transport in self._running.values():
            transport.close()
        self._running.clear()
