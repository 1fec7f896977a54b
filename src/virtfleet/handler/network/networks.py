"""The guest's network on this node: what a VMI wants of it, set up inside the Pod, and what of it is told to whom."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_interface, ip_network
from pathlib import Path

import msgspec

from virtfleet.api import traits
from virtfleet.api.addresses import guest_network, plain_ip
from virtfleet.api.networks import DHCPOptions, Interface, Network
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi, interfaces
from virtfleet.handler.network.plan import (
    GUESTS,
    GUESTS6,
    PRIMARY,
    InterfaceRequest,
    Link,
    Route,
    dhcp_server,
    gateway_address,
    guest_address,
)
from virtfleet.handler.network.setup import Order
from virtfleet.handler.pods.process import PodProcess, path_of
from virtfleet.kube import confined
from virtfleet.pods.networks import pod_interface
from virtfleet.protocol.messages import Lease, Lease6
from virtfleet.work.commands import CommandError, python, run

_LONGEST_RESOLVER = 1 << 14


class NetworkError(Exception):
    """The network could not be set up; the message says what went wrong."""


class Resolver(msgspec.Struct, frozen=True):
    """Name servers and search domains of the Pod, which the guest gets too."""

    servers: list[str] = []
    search: list[str] = []


_NO_RESOLVER = Resolver()


class Wired(msgspec.Struct, frozen=True, kw_only=True):
    """One interface as it is set up."""

    name: str
    mac: str
    tap: str
    bridge: str
    link: str
    addresses: list[str]
    """Under which the guest is reached in the cluster."""
    lease: Lease | None
    lease6: Lease6 | None = None
    queues: int


def requests(vmi: VMI, *, absent: bool = False) -> list[InterfaceRequest]:
    """The interfaces that are connected through the Pod's network namespace. Raises ValueError where one cannot be.

    With `absent`, those that are to go.
    """
    networks = {network.name: network for network in vmi.spec.networks}
    going = [i for i in vmi.spec.domain.devices.interfaces if i.state == "absent" and i.name in networks]
    return [
        _request(vmi, interface, networks[interface.name])
        for interface in (going if absent else interfaces.present(vmi))
        if interface.masquerade or interface.bridge
    ]


def _request(vmi: VMI, interface: Interface, network: Network) -> InterfaceRequest:
    secondary = network.multus is not None and not network.multus.default
    pod = network.pod
    masquerade = interface.masquerade is not None
    # A guest in the Pod's place has the Pod's address, each time another one. Elsewhere it keeps what it had first.
    kept = abi.mac(vmi, interface.name) if masquerade else abi.recorded_mac(vmi, interface.name) if secondary else ""
    return InterfaceRequest(
        name=interface.name,
        link=pod_interface(network.name) if secondary else PRIMARY,
        masquerade=masquerade,
        mac=interfaces.plain_mac(interface.mac_address) or kept,
        guests=_guests(network.name, "vmNetworkCIDR", 4, (pod.vm_network_cidr if pod else "") or GUESTS),
        guests6=_guests(network.name, "vmIPv6NetworkCIDR", 6, (pod.vm_ipv6_network_cidr if pod else "") or GUESTS6),
        ports=[
            *(((p.protocol or "tcp").lower(), p.port, p.port) for p in interface.ports if p.port is not None),
            *((p.protocol.lower(), p.start, p.end) for p in interface.port_ranges if p.start and p.end),
        ],
        queues=interfaces.queues(vmi, interface),
    )


def _guests(name: str, field: str, version: int, text: str) -> str:
    """A private network of guests. One that admission would refuse may have been written before there was a check."""
    try:
        return str(guest_network(text, version))
    except ValueError as error:
        raise ValueError(f"spec.networks[{name}].pod.{field}: {error}") from None


def wired(vmi: VMI, links: Mapping[str, Link], resolver: Resolver = _NO_RESOLVER) -> list[Wired]:
    """What came of the VMI's interfaces, as far as the Pod has them. Pure."""
    options = {i.name: i.dhcp_options for i in vmi.spec.domain.devices.interfaces}
    return [
        Wired(
            name=nic.name,
            mac=nic.mac or link.mac,
            tap=nic.tap,
            bridge=nic.bridge,
            link=nic.link,
            addresses=[a.partition("/")[0] for a in link.addresses],
            lease=_lease(nic, link, resolver, options[nic.name], traits.hostname(vmi)),
            lease6=_lease6(nic, link, resolver),
            queues=nic.queues,
        )
        for nic in (*requests(vmi), *requests(vmi, absent=True))
        if (link := links.get(nic.link))
    ]


def _lease(
    nic: InterfaceRequest, link: Link, resolver: Resolver, options: DHCPOptions | None, name: str
) -> Lease | None:
    """What the guest is told by DHCP; None where the Pod has no IPv4 address for it."""
    if not link.address(4):
        return None
    routes: list[tuple[str, str]] = []
    if nic.masquerade:
        network = ip_network(nic.guests)
        address = f"{guest_address(network)}/{network.prefixlen}"
        server = gateway_address(network)
        routers = [server]
    else:
        address, server = link.address(4), dhcp_server(nic)
        routers, routes = _passed_on(link)
    options = options or DHCPOptions()
    return Lease(
        device=nic.bridge,
        mac=nic.mac or link.mac,
        address=address,
        server=server,
        routers=routers,
        routes=routes,
        dns=[s for s in resolver.servers if ":" not in s],
        search=resolver.search,
        ntp=[plain_ip(server) for server in options.ntp_servers],
        mtu=link.mtu,
        hostname=name,
        tftp_server=options.tftp_server_name,
        boot_file=options.boot_file_name,
        options={o.option: o.value for o in options.private_options if o.option is not None},
    )


def _lease6(nic: InterfaceRequest, link: Link, resolver: Resolver) -> Lease6 | None:
    """What the guest is told by DHCPv6 and as its router; None where it is not behind the Pod's IPv6 address.

    A guest that took the Pod's place is told by the cluster's own network.
    """
    if not nic.masquerade or not link.address(6):
        return None
    network = ip_network(nic.guests6)
    return Lease6(
        device=nic.bridge,
        address=f"{guest_address(network)}/{network.prefixlen}",
        dns=[s for s in resolver.servers if ":" in s],
        search=resolver.search,
        mtu=link.mtu,
    )


def _passed_on(link: Link) -> tuple[list[str], list[tuple[str, str]]]:
    """Routers and routes of the Pod, for a guest that takes its place.

    A client that is told routes takes them instead of its router, so the default one is among them then.
    """
    own = str(ip_interface(link.address(4)).network)
    routers = [route.gateway for route in link.routes if _is_default(route) and route.gateway]
    others = [r for r in link.routes if not _is_default(r) and r.destination != own]
    if not others:
        return routers, []
    ordered = [*others, *(r for r in link.routes if _is_default(r))]
    return routers, [(r.destination, r.gateway or "0.0.0.0") for r in ordered]


def _is_default(route: Route) -> bool:
    return route.destination == "0.0.0.0/0"


def resolver(text: str) -> Resolver:
    """From the content of a resolv.conf."""
    lines = [line.split() for line in text.splitlines()]
    servers = []
    for named in (words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"):
        with suppress(ValueError):  # what is no address is of no use to a guest
            servers.append(plain_ip(named))
    search = next((words[1:] for words in reversed(lines) if words[:1] == ["search"]), [])
    return Resolver(servers, search)


def pluggable(vmi: VMI) -> list[InterfaceRequest]:
    """Interfaces that may come to a VM that runs: those on networks beside the cluster's."""
    with suppress(ValueError):
        return [nic for nic in requests(vmi) if nic.link != PRIMARY]
    return []


def arrived(process: PodProcess | None, vmi: VMI) -> list[str]:
    """Of those, the ones whose interface the Pod has by now."""
    if not (wanted := pluggable(vmi)) or process is None:
        return []
    try:
        lines = process.read("net/dev").decode(errors="replace").splitlines()
    except OSError:
        return []
    there = {line.partition(":")[0].strip() for line in lines}
    return [nic.name for nic in wanted if nic.link in there]


class Networks:
    """The networks of this node's launchers. `directory` holds what their Pods were like at first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._helpers = asyncio.Semaphore(os.cpu_count() or 1)  # more at once would only make each slower

    async def set_up(self, process: PodProcess, vmi: VMI, only: Collection[str] | None = None) -> list[Wired]:
        """Set the VMI's interfaces up in the Pod in which `process` runs, or some of them; may be repeated."""
        try:
            wanted = [nic for nic in requests(vmi) if only is None or nic.name in only]
        except ValueError as error:
            raise NetworkError(str(error)) from None
        if not wanted:
            return []
        links = await self._order(process, wanted)
        return wired(vmi, links, self._resolver(process))

    async def take_down(self, process: PodProcess, vmi: VMI, domain: Collection[str]) -> list[str]:
        """Give the Pod back what is to go and the domain has not any more; the answer is what the domain still has.

        `domain` are the hardware addresses of its interfaces.
        """
        going = {nic.name: nic for nic in requests(vmi, absent=True)}
        there = {w.name: w for w in self.known(process.pod, process, vmi) if w.name in going} if going else {}
        free = [going[name] for name, w in there.items() if w.mac not in domain]
        if free:
            await self._order(process, [], free)
        return [name for name, w in there.items() if w.mac in domain]

    async def _order(
        self, process: PodProcess, wanted: list[InterfaceRequest], undo: Sequence[InterfaceRequest] = ()
    ) -> dict[str, Link]:
        """Have something done in the Pod's namespace; the answer is what its interfaces were at first."""
        order = Order(wanted, str(self._memory(process.pod).absolute()), [*undo])
        with process.namespace("net") as namespace:
            enter = "nsenter", f"--net={path_of(namespace)}", *python("virtfleet.handler.network.setup")
            async with self._helpers:
                try:
                    out = await run(*enter, feed=msgspec.json.encode(order))
                except CommandError as error:
                    raise NetworkError(f"the network could not be set up: {error}") from None
        return msgspec.json.decode(out, type=dict[str, Link])

    def known(self, pod: str, process: PodProcess | None, vmi: VMI) -> list[Wired]:
        """What was set up before; nothing where nothing was, or where a crash broke the record of it."""
        try:
            links = msgspec.json.decode(self._memory(pod).read_bytes(), type=dict[str, Link])
            return wired(vmi, links, self._resolver(process))
        except (FileNotFoundError, ValueError):
            return []

    def forget(self, pod: str) -> None:
        self._memory(pod).unlink(missing_ok=True)

    def _memory(self, pod: str) -> Path:
        return self._directory / f"{pod}.json"

    @staticmethod
    def _resolver(process: PodProcess | None) -> Resolver:
        if process:
            with suppress(OSError), process.opened("etc/resolv.conf", confined.READ) as file:
                return resolver(confined.read_file(file, _LONGEST_RESOLVER).decode(errors="replace"))
        return _NO_RESOLVER
