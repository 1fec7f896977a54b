"""Network interfaces of a domain.

The handler makes a tap for every interface that is bound in the Pod's network namespace, so the domain only attaches to
it. Virtual functions of network cards are host devices, and plugins that attach nothing to the domain are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from virtfleet.api import names, traits
from virtfleet.api.addresses import PCI_ADDRESS
from virtfleet.api.networks import Interface
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add

_MOST_QUEUES = 256  # of a tap device
_BRIDGE = "k6t-eth0"  # of the first network
# Ports of Istio's proxy, which must not be forwarded to the guest.
_ISTIO_PORTS = (15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090)


def present(vmi: VMI) -> list[Interface]:
    """Interfaces that the VM has; the others wait to be removed."""
    networks = {network.name for network in vmi.spec.networks}
    wanted = [i for i in vmi.spec.domain.devices.interfaces if i.state != "absent"]
    for interface in wanted:
        if interface.name not in networks:
            raise DomainError(f"interface {interface.name!r}: spec.networks has no network of that name")
    return wanted


def attached(vmi: VMI, context: Context) -> Iterator[tuple[Interface, bool]]:
    """Interfaces that the domain attaches itself, and whether to a tap."""
    for interface in present(vmi):
        tap = uses_tap(interface, context)
        if not interface.sriov and (tap or not interface.binding):
            yield interface, tap


def on_bridge(devices: Element, interface: Interface, context: Context, guest: str) -> Element:
    """An interface of a guest that joins bridges of its Pod itself, and not by taps."""
    if not uses_tap(interface, context):
        raise DomainError(f"interface {interface.name!r}: {guest} can join bridges of its Pod only")
    element = add(devices, "interface", type="bridge")
    if interface.mac_address:
        add(element, "mac", address=interface.mac_address)
    add(element, "source", bridge=context.bridges.get(interface.name, _BRIDGE))
    return element


def uses_tap(interface: Interface, context: Context) -> bool:
    if interface.masquerade or interface.bridge:
        return True
    return interface.binding is not None and context.attachments.get(interface.binding.name) in ("tap", "managedTap")


def queues(vmi: VMI, interface: Interface) -> int:
    """Queues of an interface, or 0 where they are not asked for. Only virtio has several."""
    if not vmi.spec.domain.devices.network_interface_multiqueue or (interface.model or "virtio") != "virtio":
        return 0
    return min(traits.topology(vmi).vcpus, _MOST_QUEUES)


def plain_mac(address: str) -> str:
    """A MAC address as libvirt and Linux write it; people also write DE-AD-00-00-BE-AF and dead.0000.beaf."""
    digits = "".join(letter for letter in address.lower() if letter not in ":-.")
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def pci_address(parent: Element, address: str, of: str) -> Element:
    """The address element for a PCI address such as 0000:81:01.0."""
    match = PCI_ADDRESS.fullmatch(address)
    if not match:
        raise DomainError(f"{of}: {address!r} is not a PCI address such as 0000:81:01.0")
    domain, bus, slot, function = match.groups()
    return add(
        parent, "address", type="pci", domain=f"0x{domain}", bus=f"0x{bus}", slot=f"0x{slot}", function=f"0x{function}"
    )


def passt(element: Element, vmi: VMI, interface: Interface) -> None:
    """Attach an interface to passt, which forwards ports in user space."""
    status = next((s for s in vmi.status.interfaces if s.name == interface.name), None)
    if not status or not status.pod_interface_name:
        raise DomainError(f"interface {interface.name!r}: the Pod's interface is not known yet")
    element.set("type", "vhostuser")
    add(element, "source", dev=status.pod_interface_name)
    add(element, "backend", type="passt", logFile=paths.PASST_LOG)
    proxied = vmi.metadata.annotations.get(names.ISTIO_INJECT, "").lower() == "true"
    forwards: dict[str, list[dict[str, str | int]]] = {"tcp": [], "udp": []}
    if proxied:
        forwards["tcp"] = [{"start": port, "exclude": "yes"} for port in _ISTIO_PORTS]
    for port in interface.ports:
        forwards[(port.protocol or "tcp").lower()].append({"start": port.port or 0})
    everything = not any(forwards.values())
    for protocol, ranges in forwards.items():
        if ranges or everything:
            forward = add(element, "portForward", proto=protocol)
            for entry in ranges:
                add(forward, "range", **entry)
