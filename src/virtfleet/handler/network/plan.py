"""How an interface of the Pod becomes an interface of the guest: the plan, by what the Pod has and the VMI wants. Pure.

Every binding has a bridge in the Pod's network namespace with a tap in it that the hypervisor opens. With *masquerade*
the guest has a private address behind the Pod's, and the kernel translates; with *bridge* the guest takes over the
Pod's own address. A plan can be carried out again at any time: links are made where they are missing, everything else
is set to what it should be. Nothing heavy is imported: a process is started for every plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

import msgspec

from virtfleet.api.addresses import mac_address
from virtfleet.domain.paths import USER

PRIMARY = "eth0"
TABLE = "kubevirt"
GUESTS, GUESTS6 = "10.0.2.0/24", "fd10:0:2::/120"
_BRIDGE_MAC = "02:00:00:00:00:00"
# A connection that this kernel has not seen begin is one that came with the guest from another node. The Pod would
# answer that there is none, so the guest gets it, whatever its port: it may be the guest that had opened it.
_GOES_ON = "tcp flags & (syn | rst) == 0 "
_DHCP_SERVERS = "169.254.75"  # of bridged interfaces, where the guest has the Pod's address


class Route(msgspec.Struct, frozen=True):
    """A route of the Pod; without a gateway it is on the link."""

    destination: str
    gateway: str = ""


class Link(msgspec.Struct, frozen=True):
    """An interface of the Pod, as the cluster's network made it."""

    name: str
    mac: str
    mtu: int
    addresses: list[str] = []
    """With the lengths of their prefixes."""
    routes: list[Route] = []

    def address(self, version: int) -> str:
        return next((a for a in self.addresses if ip_interface(a).version == version), "")


class InterfaceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the VMI wants of one of its interfaces."""

    name: str
    link: str
    masquerade: bool
    mac: str = ""
    """The guest's; where empty, that of the Pod's interface."""
    guests: str = GUESTS
    guests6: str = GUESTS6
    ports: list[tuple[str, int, int]] = []
    """Protocol, first and last port that are forwarded; everything where empty."""
    queues: int = 0

    @property
    def suffix(self) -> str:
        """What the names of the links that belong together end in; with a prefix of four they fit the kernel."""
        return self.link.removeprefix("pod") if self.link != PRIMARY else PRIMARY

    @property
    def bridge(self) -> str:
        return f"k6t-{self.suffix}"

    @property
    def tap(self) -> str:
        return "tap0" if self.link == PRIMARY else f"tap{self.suffix}"

    @property
    def moved(self) -> str:
        """Name of the Pod's interface after a bridge took its place."""
        return f"{self.suffix}-nic"


class Plan(msgspec.Struct):
    """What is to be done inside the namespace."""

    commands: list[str] = []
    """Of `ip`, in this order."""
    sysctls: dict[str, str] = {}
    rules: str = ""
    """Of `nft`; they replace those of before."""
    bridges: list[str] = []
    """Their checksums are computed at once, because guests' DHCP clients look at packets before the kernel does."""
    routers: list[str] = []
    """Bridges that are the guest's router by IPv6, which somebody has to tell it."""


def plan(wanted: Iterable[InterfaceRequest], links: Mapping[str, Link], present: Collection[str]) -> Plan:
    """The plan. `links` are the Pod's interfaces as they were at first, `present` the names of those there are now."""
    made = Plan()
    for nic in wanted:
        link = links[nic.link]
        made.commands += _bridge(nic, link, present)
        made.bridges.append(nic.bridge)
        if nic.masquerade:
            for network in map(ip_network, (nic.guests, nic.guests6)):
                if link.address(network.version):  # the Pod is of this family
                    _masquerade(nic, network, made)
        else:
            made.commands += _take_over(nic, link, present)
            # The Pod must not answer for the address that is the guest's now.
            made.sysctls[f"net/ipv4/conf/{nic.bridge}/arp_ignore"] = "1"
    return made


def _bridge(nic: InterfaceRequest, link: Link, present: Collection[str]) -> list[str]:
    several = " multi_queue" if nic.queues > 1 else ""
    make = {
        nic.bridge: f"link add {nic.bridge} address {_BRIDGE_MAC} mtu {link.mtu} type bridge",
        nic.tap: f"tuntap add dev {nic.tap} mode tap user {USER} vnet_hdr{several}",
    }
    return [
        *(command for name, command in make.items() if name not in present),
        f"link set {nic.tap} mtu {link.mtu} master {nic.bridge} up",
        f"link set {nic.bridge} up",
    ]


# --- masquerade


def guest_address(network: IPv4Network | IPv6Network) -> str:
    return str(network[2])


def gateway_address(network: IPv4Network | IPv6Network) -> str:
    return str(network[1])


def _masquerade(nic: InterfaceRequest, network: IPv4Network | IPv6Network, made: Plan) -> None:
    address = f"addr replace {gateway_address(network)}/{network.prefixlen} dev {nic.bridge}"
    if network.version == 4:
        made.commands.append(address)
        # The second one lets what the Pod sends to itself reach the guest.
        made.sysctls |= {"net/ipv4/ip_forward": "1", f"net/ipv4/conf/{nic.bridge}/route_localnet": "1"}
    else:
        made.commands.append(f"{address} nodad")
        made.sysctls["net/ipv6/conf/all/forwarding"] = "1"
        made.routers.append(nic.bridge)
    made.rules += _rules(nic, network)


def _rules(nic: InterfaceRequest, network: IPv4Network | IPv6Network) -> str:
    family, loopback = ("ip", "127.0.0.1") if network.version == 4 else ("ip6", "::1")
    guest, gateway = guest_address(network), gateway_address(network)
    inbound = [
        f'iifname "{nic.link}" {ports}dnat to {guest}' for ports in [*_ports(nic), *([_GOES_ON] * bool(nic.ports))]
    ]
    local = [f"{family} daddr {loopback} {ports}dnat to {guest}" for ports in _ports(nic)]
    table = f"table {family} {TABLE}"
    return f"""{table}
delete {table}
{table} {{
  chain prerouting {{
    type nat hook prerouting priority -100;
    {"; ".join(inbound)}
  }}
  chain output {{
    type nat hook output priority -100;
    {"; ".join(local)}
  }}
  chain postrouting {{
    type nat hook postrouting priority 100;
    {family} saddr {guest} oifname "{nic.link}" masquerade
    {family} saddr {loopback} oifname "{nic.bridge}" snat to {gateway}
  }}
}}
"""


def _ports(nic: InterfaceRequest) -> list[str]:
    """What connections are forwarded, one match for each protocol."""
    by_protocol: dict[str, list[str]] = {}
    for protocol, first, last in nic.ports:
        by_protocol.setdefault(protocol, []).append(str(first) if first == last else f"{first}-{last}")
    return [f"{protocol} dport {{ {', '.join(ports)} }} " for protocol, ports in by_protocol.items()] or [""]


# --- bridge


def _take_over(nic: InterfaceRequest, link: Link, present: Collection[str]) -> list[str]:
    """The Pod's interface becomes a port of the bridge. Another one, down, keeps its name and addresses.

    That one is a bridge without ports, because not every kernel has dummy interfaces.
    """
    rename = [f"link set {nic.link} down", f"link set {nic.link} name {nic.moved}", f"link add {nic.link} type bridge"]
    return [
        *(rename if nic.moved not in present else [] if nic.link in present else rename[2:]),
        f"addr flush dev {nic.moved}",
        f"link set {nic.moved} address {mac_address(link.mac, nic.moved)} master {nic.bridge} up",
        # A cluster's bridge may send back what the guest says; the guest is not to be looked for on that side then.
        f"link set {nic.moved} type bridge_slave learning off",
        *(f"addr replace {address} dev {nic.link}" for address in link.addresses),
        f"addr replace {dhcp_server(nic)}/32 dev {nic.bridge}",
    ]


def dhcp_server(nic: InterfaceRequest) -> str:
    """The same for an interface whatever others come and go."""
    return f"{_DHCP_SERVERS}.{10 if nic.link == PRIMARY else 11 + int(nic.suffix, 16) % 200}"


def undo(nic: InterfaceRequest, link: Link, present: Mapping[str, str]) -> list[str]:
    """Give a bridged interface back to the Pod as it was, for whoever made it to take away. May be repeated.

    `present` are the kinds of the links that there are: the one that keeps the name is a bridge, what is given back is
    not, and may have been taken away already.
    """
    held = [nic.link] if present.get(nic.link) == "bridge" else []
    back = [
        f"link set dev {nic.moved} nomaster",
        f"link set dev {nic.moved} down",
        f"link set dev {nic.moved} address {link.mac}",
        f"link set dev {nic.moved} name {nic.link}",
        *(f"addr replace {address} dev {nic.link}" for address in link.addresses),
    ]
    made = [name for name in (nic.tap, nic.bridge) if name in present]
    return [*(f"link delete dev {name}" for name in (*held, *made)), *(back if nic.moved in present else [])]
