"""What a VMI wants of the interfaces that are connected through its Pod's network namespace. Pure."""

from __future__ import annotations

from virtfleet.api.addresses import guest_network
from virtfleet.api.networks import Interface, Network
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi, interfaces
from virtfleet.handler.network.plan import GUESTS, GUESTS6, PRIMARY, InterfaceRequest
from virtfleet.pods.networks import pod_interface


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
        guests=_network(network.name, "vmNetworkCIDR", 4, (pod.vm_network_cidr if pod else "") or GUESTS),
        guests6=_network(network.name, "vmIPv6NetworkCIDR", 6, (pod.vm_ipv6_network_cidr if pod else "") or GUESTS6),
        ports=[
            *(((p.protocol or "tcp").lower(), p.port, p.port) for p in interface.ports if p.port is not None),
            *((p.protocol.lower(), p.start, p.end) for p in interface.port_ranges if p.start and p.end),
        ],
        queues=interfaces.queues(vmi, interface),
    )


def _network(name: str, field: str, version: int, text: str) -> str:
    """A private network of guests. One that admission would refuse may have been written before there was a check."""
    try:
        return str(guest_network(text, version))
    except ValueError as error:
        raise ValueError(f"spec.networks[{name}].pod.{field}: {error}") from None
