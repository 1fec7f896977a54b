"""Rules for networks and interfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address
from itertools import pairwise

from virtfleet.admission.case import Case
from virtfleet.admission.findings import NOT_SUPPORTED
from virtfleet.admission.names import port_name_error
from virtfleet.api.addresses import PCI_ADDRESS, NetworkError, guest_network, plain_ip
from virtfleet.api.networks import DHCPOptions, Interface, PodNetwork, Port
from virtfleet.api.view import given

_INTERFACES = "domain.devices.interfaces"
_BINDINGS = ("bridge", "masquerade", "sriov", "passtBinding", "binding")
_DISCONTINUED = ("slirp", "passt", "macvtap")
_MODELS = ("", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio")
_STATES = ("", "absent", "down", "up")
_NAME = re.compile(r"[A-Za-z0-9-_]+")
# 6, 8 or 20 bytes as Go reads them: pairs with ':' or '-', or groups of four with '.'.
_MAC = re.compile(r"(?i:[0-9a-f]{2}([:-])[0-9a-f]{2}(\1[0-9a-f]{2}){4}|[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4})")
_IN_POD_BRIDGE_MAC = "02:00:00:00:00:00"
_MOST_PORT_RANGES = 10
_PRIVATE_OPTIONS = range(224, 255)


def check(case: Case) -> None:
    _check_networks(case)
    _check_claims(case)
    networks = {network.name: network for network in case.spec.networks}
    seen: set[str] = set()
    for i, interface in enumerate(case.devices.interfaces):
        name, path = interface.name, f"{_INTERFACES}[{i}]"
        network = networks.get(name)
        on_pod = network is not None and network.pod is not None
        if name in seen:
            case.duplicate(f"{path}.name", f"two interfaces are called {name!r}; each network has one interface")
        seen.add(name)
        if network is None:
            place = case.at("networks")
            case.invalid(f"{path}.name", f"interface {name!r} has no network; add one of that name to {place}")
        _check_binding(case, interface, on_pod, path)
        _check_state(case, interface, path)
        _check_fields(case, interface, path)
        if on_pod:
            _check_ports(case, interface.ports, path)
        _check_port_ranges(case, interface, on_pod, path)
        _check_dhcp(case, interface.dhcp_options or DHCPOptions(), path)
    no_network = case.devices.autoattach_pod_interface is not False and not networks and not seen
    if no_network and case.cluster.network_interface == "bridge" and not case.cluster.bridge_on_pod_network:
        case.invalid(
            _INTERFACES,
            "the VM names no network and the default, a bridge on the pod network, is not permitted here; add a "
            "masquerade interface, or set autoattachPodInterface: false",
        )


def check_discontinued(case: Case) -> None:
    """Bindings that existed once; refused for new objects only, so that old ones can still be edited.

    KubeVirt leaves a template out of these paths.
    """
    for i, interface in enumerate(case.devices.interfaces):
        for binding in given(interface, _DISCONTINUED):
            message = f"the {binding} binding no longer exists; use masquerade, bridge or a binding plugin"
            case.whole.invalid(f"spec.{_INTERFACES}[{i}].{binding}", message)


def _check_networks(case: Case) -> None:
    interfaces = {interface.name for interface in case.devices.interfaces}
    names: set[str] = set()
    unnamed_multus = False
    for i, network in enumerate(case.spec.networks):
        name, path = network.name, f"networks[{i}]"
        kinds = given(network, ("pod", "multus", "resourceClaim"))
        if len(kinds) != 1:
            what = f"is both {' and '.join(kinds)}; keep one" if kinds else "has no kind; add pod: {} or multus"
            case.required(path, f"network {name!r} {what}")
        if network.multus is not None and not network.multus.network_name and not unnamed_multus:
            unnamed_multus = True
            case.required(path, f"network {name!r} needs multus.networkName, the NetworkAttachmentDefinition to use")
        if network.pod is not None:
            _check_guest_networks(case, network.pod, f"{path}.pod")
        if name in names:
            case.duplicate(f"{path}.name", f"two networks are called {name!r}; rename one")
        names.add(name)
        if name not in interfaces:
            case.required(f"{path}.name", f"network {name!r} has no interface; add one to {case.at(_INTERFACES)}")
    pods = sum(network.pod is not None for network in case.spec.networks)
    defaults = sum(bool(network.multus and network.multus.default) for network in case.spec.networks)
    if pods > 1:
        case.duplicate("interfaces", f"{pods} networks are the pod network, and a VM has one; use multus for others")
    if defaults > 1:
        case.invalid("networks", "more than one multus network is marked as default; keep one")
    if pods and defaults:
        case.invalid("networks", "a multus default network replaces the pod network; remove one of them")


def _check_guest_networks(case: Case, pod: PodNetwork, path: str) -> None:
    for field, text, version in (
        ("vmNetworkCIDR", pod.vm_network_cidr, 4),
        ("vmIPv6NetworkCIDR", pod.vm_ipv6_network_cidr, 6),
    ):
        try:
            if text:
                guest_network(text, version)
        except NetworkError as error:
            case.invalid(f"{path}.{field}", str(error))


def _check_binding(case: Case, interface: Interface, on_pod: bool, path: str) -> None:
    name, field = interface.name, f"{path}.name"
    bindings = given(interface, _BINDINGS)
    if len(bindings) != 1:
        has = " and ".join(bindings) or "none"
        case.invalid(
            path, f"interface {name!r} needs exactly one binding and has {has}; add masquerade: {{}}, for example"
        )
    if interface.masquerade is not None and not on_pod:
        case.invalid(field, f"interface {name!r}: masquerade works on the pod network only; use bridge")
    if interface.masquerade is not None and interface.mac_address == _IN_POD_BRIDGE_MAC:
        case.invalid(f"{path}.macAddress", f"{_IN_POD_BRIDGE_MAC} belongs to the bridge in the pod; use another")
    if interface.bridge is not None and on_pod and not case.cluster.bridge_on_pod_network:
        case.invalid(field, f"interface {name!r}: no bridge is permitted on the pod network; use masquerade")
    if interface.passt_binding is not None:
        case.needs_gate(field, "PasstBinding", f"interface {name!r} with passtBinding")
        if not on_pod:
            case.invalid(field, f"interface {name!r}: passtBinding works on the pod network only")


def _check_state(case: Case, interface: Interface, path: str) -> None:
    state, name, field = interface.state, interface.name, f"{path}.state"
    if state not in _STATES:
        case.invalid(field, f"state {state!r} of interface {name!r} does not exist; use up, down or absent")
    if interface.sriov is not None and state in ("up", "down"):
        case.invalid(field, f"the link of SR-IOV interface {name!r} cannot be set {state}; remove state")
    if state != "absent":
        return
    if interface.bridge is None:
        case.invalid(field, f"interface {name!r} cannot be unplugged; only one with a bridge can be absent")
    defaults = (n.name for n in case.spec.networks if n.pod is not None or (n.multus and n.multus.default))
    if next(defaults, None) == name:
        case.invalid(field, f"interface {name!r} is on the VM's default network and cannot be absent")


def _check_fields(case: Case, interface: Interface, path: str) -> None:
    name, model, mac, address = interface.name, interface.model, interface.mac_address, interface.pci_address
    if not _NAME.fullmatch(name):
        case.invalid(f"{path}.name", f"interface name {name!r} may only have letters, digits, '-' and '_'")
    case.check_choice(f"{path}.model", "model", model, _MODELS, NOT_SUPPORTED)
    if mac and not _MAC.fullmatch(mac):
        case.invalid(f"{path}.macAddress", f"{mac!r} is not a MAC address; write it like 02:00:00:00:00:01")
    if address and not PCI_ADDRESS.fullmatch(address):
        case.invalid(f"{path}.pciAddress", f"{address!r} is not a PCI address; write it like 0000:81:01.0")


def _check_ports(case: Case, ports: Sequence[Port], path: str) -> None:
    names: set[str] = set()
    used: set[tuple[int, str]] = set()
    for i, port in enumerate(ports):
        field, name, number, protocol = f"{path}.ports[{i}]", port.name, port.port or 0, port.protocol or "TCP"
        if name:
            if name in names:
                case.duplicate(f"{field}.name", f"two ports are called {name!r}; rename one")
            if why := port_name_error(name):
                case.invalid(f"{field}.name", f"{name!r} is not a port name: {why}")
            names.add(name)
        if not number:
            case.required(f"{field}.port", "set port, a number from 1 to 65535")
        elif not 0 < number < 65536:
            case.invalid(f"{field}.port", f"port {number} does not exist; use 1 to 65535")
        elif (number, protocol) in used:
            case.duplicate(f"{field}.port", f"{protocol} port {number} is listed twice; remove one")
        used.add((number, protocol))
        if protocol not in ("TCP", "UDP"):
            case.invalid(f"{field}.protocol", f"protocol {protocol!r} is not forwarded; use TCP or UDP")


def _check_port_ranges(case: Case, interface: Interface, on_pod: bool, path: str) -> None:
    field, ranges = f"{path}.portRanges", interface.port_ranges
    if not case.says(field):
        return
    if not case.needs_gate(f"{path}.name", "PortRangesSpec", "portRanges") or not on_pod:
        return
    if case.says(f"{path}.ports"):
        case.invalid(f"{path}.name", "an interface has ports or portRanges, not both; remove one")
    if interface.masquerade is None:
        case.invalid(f"{path}.name", "portRanges work with masquerade only")
    if len(ranges) > _MOST_PORT_RANGES:
        case.invalid(field, f"there are {len(ranges)} portRanges; {_MOST_PORT_RANGES} are allowed")
        return
    sound: dict[str, list[tuple[int, int]]] = {}
    for i, item in enumerate(ranges):
        at, start, end, protocol = f"{field}[{i}]", item.start or 0, item.end or 0, item.protocol
        if protocol not in ("TCP", "UDP"):
            case.invalid(f"{at}.protocol", f"protocol {protocol!r} is not forwarded; use TCP or UDP")
        elif not 0 < start < 65536:
            case.invalid(f"{at}.start", f"port {start} does not exist; use 1 to 65535")
        elif not 0 < end < 65536:
            case.invalid(f"{at}.end", f"port {end} does not exist; use 1 to 65535")
        elif start > end:
            case.invalid(f"{at}.start", f"start {start} is after end {end}; swap them")
        else:
            sound.setdefault(protocol, []).append((start, end))
    for protocol, spans in sound.items():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            if start <= end:
                case.invalid(field, f"{protocol} portRanges overlap at port {start}; join them")


def _check_dhcp(case: Case, options: DHCPOptions, path: str) -> None:
    private = [option.option for option in options.private_options]
    if len(set(private)) < len(private):
        case.invalid("", "dhcpOptions.privateOptions has an option twice; remove one")
    if any(option not in _PRIVATE_OPTIONS for option in private):
        case.invalid("", "dhcpOptions.privateOptions are numbered from 224 to 254; change the number")
    for i, server in enumerate(options.ntp_servers):
        try:
            IPv4Address(plain_ip(server))
        except ValueError:
            case.invalid(f"{path}.dhcpOptions.ntpServers[{i}]", f"{server!r} is not an IPv4 address")


def claim_pairs(case: Case) -> dict[str, int]:
    """claim/request of networks that come from resource claims -> index of the first network with it."""
    pairs: dict[str, int] = {}
    for i, network in enumerate(case.spec.networks):
        claim = network.resource_claim
        if claim and claim.claim_name and claim.request_name:
            pairs.setdefault(f"{claim.claim_name}/{claim.request_name}", i)
    return pairs


def _check_claims(case: Case) -> None:
    """Networks that are provided by dynamic resource allocation."""
    networks = case.spec.networks
    if all(network.resource_claim is None for network in networks):
        return
    if not case.needs_gate("networks", "NetworkDevicesWithDRA", "a network with resourceClaim"):
        return
    if any(network.multus is not None for network in networks):
        case.invalid("networks", "multus networks and resourceClaim networks cannot be mixed; use one kind")
        return
    interfaces = {interface.name: interface for interface in case.devices.interfaces}
    claims = {claim.name for claim in case.spec.resource_claims}
    first = claim_pairs(case)
    for i, network in enumerate(networks):
        claim, interface = network.resource_claim, interfaces.get(network.name)
        if claim is None:
            continue
        if interface is not None and interface.sriov is None and interface.binding is None:
            message = f"network {network.name!r} has a resourceClaim and needs an interface with sriov or binding"
            case.invalid(_INTERFACES, message)
        path, name, request = f"networks[{i}]", claim.claim_name, claim.request_name
        for field, value in (("claimName", name), ("requestName", request)):
            if not value:
                case.required(f"{path}.resourceClaim.{field}", f"set {field} of the resourceClaim")
        if not name or not request:
            continue
        if name not in claims:
            place = case.at("resourceClaims")
            case.not_found(f"{path}.resourceClaim.claimName", f"{name!r} is not in {place}; add it")
        if first[f"{name}/{request}"] != i:
            case.duplicate(path, f"request {request!r} of claim {name!r} is used by two networks; use another request")
