"""Rules for networks and interfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address
from itertools import pairwise

from virtfleet.admission.disks import PCI_ADDRESS
from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine
from virtfleet.admission.names import port_name_error
from virtfleet.admission.sections import Section, read
from virtfleet.api.addresses import NetworkError, guest_network

_BINDINGS = ("bridge", "masquerade", "sriov", "passtBinding", "binding")
_DISCONTINUED = ("slirp", "passt", "macvtap")
_MODELS = ("e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio")
_STATES = ("", "absent", "down", "up")
_NAME = re.compile(r"[A-Za-z0-9-_]+")
# 6, 8 or 20 bytes as Go reads them: pairs with ':' or '-', or groups of four with '.'.
_MAC = re.compile(r"(?i:[0-9a-f]{2}([:-])[0-9a-f]{2}(\1[0-9a-f]{2}){4}|[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4})")
_IN_POD_BRIDGE_MAC = "02:00:00:00:00:00"
_MOST_PORT_RANGES = 10
_PRIVATE_OPTIONS = range(224, 255)


def check(m: Machine, found: Findings) -> None:
    _check_networks(m, found)
    _check_claims(m, found)
    networks = {n.get("name"): n for n in m.networks}
    seen: set[str] = set()
    for i, interface in enumerate(m.interfaces):
        name, path = interface.get("name") or "", m.at(f"domain.devices.interfaces[{i}]")
        network = networks.get(name)
        if name in seen:
            found.duplicate(f"{path}.name", f"two interfaces are called {name!r}; each network has one interface")
        seen.add(name)
        if network is None:
            found.invalid(
                f"{path}.name", f"interface {name!r} has no network; add one of that name to {m.at('networks')}"
            )
        _check_binding(m, interface, network or {}, path, found)
        _check_state(m, interface, path, found)
        _check_fields(interface, path, found)
        if network is not None and network.get("pod") is not None:
            _check_ports(interface.get("ports") or (), path, found)
        _check_port_ranges(m, interface, network or {}, path, found)
        _check_dhcp(m, read(interface, "dhcpOptions"), path, found)
    no_network = m.devices.get("autoattachPodInterface") is not False and not m.networks and not m.interfaces
    if no_network and m.cluster.network_interface == "bridge" and not m.cluster.bridge_on_pod_network:
        found.invalid(
            m.at("domain.devices.interfaces"),
            "the VM names no network and the default, a bridge on the pod network, is not permitted here; add a "
            "masquerade interface, or set autoattachPodInterface: false",
        )


def check_discontinued(m: Machine, found: Findings) -> None:
    """Bindings that existed once; refused for new objects only, so that old ones can still be edited."""
    for i, interface in enumerate(m.interfaces):
        for binding in _DISCONTINUED:
            if interface.get(binding) is not None:
                found.invalid(
                    m.at(f"domain.devices.interfaces[{i}].{binding}"),
                    f"the {binding} binding no longer exists; use masquerade, bridge or a binding plugin",
                )


def _check_networks(m: Machine, found: Findings) -> None:
    interfaces = {i.get("name") for i in m.interfaces}
    names: set[str] = set()
    pods = defaults = 0
    unnamed_multus = False
    for i, network in enumerate(m.networks):
        name, path = network.get("name") or "", m.at(f"networks[{i}]")
        kinds = [kind for kind in ("pod", "multus", "resourceClaim") if network.get(kind) is not None]
        pods += "pod" in kinds
        defaults += "multus" in kinds and bool(network["multus"].get("default"))
        if len(kinds) != 1:
            what = f"is both {' and '.join(kinds)}; keep one" if kinds else "has no kind; add pod: {} or multus"
            found.required(path, f"network {name!r} {what}")
        if "multus" in kinds and not network["multus"].get("networkName") and not unnamed_multus:
            unnamed_multus = True
            found.required(path, f"network {name!r} needs multus.networkName, the NetworkAttachmentDefinition to use")
        if "pod" in kinds:
            _check_guest_networks(network["pod"], f"{path}.pod", found)
        if name in names:
            found.duplicate(f"{path}.name", f"two networks are called {name!r}; rename one")
        names.add(name)
        if name not in interfaces:
            found.required(
                f"{path}.name", f"network {name!r} has no interface; add one to {m.at('domain.devices.interfaces')}"
            )
    if pods > 1:
        found.duplicate(
            m.at("interfaces"), f"{pods} networks are the pod network, and a VM has one; use multus for others"
        )
    if defaults > 1:
        found.invalid(m.at("networks"), "more than one multus network is marked as default; keep one")
    if pods and defaults:
        found.invalid(m.at("networks"), "a multus default network replaces the pod network; remove one of them")


def _check_guest_networks(pod: Section, path: str, found: Findings) -> None:
    for field, version in (("vmNetworkCIDR", 4), ("vmIPv6NetworkCIDR", 6)):
        if text := pod.get(field):
            try:
                guest_network(text, version)
            except NetworkError as error:
                found.invalid(f"{path}.{field}", str(error))


def _check_binding(m: Machine, interface: Section, network: Section, path: str, found: Findings) -> None:
    name = interface.get("name")
    bindings = [binding for binding in _BINDINGS if interface.get(binding) is not None]
    if len(bindings) != 1:
        has = " and ".join(bindings) or "none"
        found.invalid(
            path, f"interface {name!r} needs exactly one binding and has {has}; add masquerade: {{}}, for example"
        )
    on_pod = network.get("pod") is not None
    if "masquerade" in bindings and not on_pod:
        found.invalid(f"{path}.name", f"interface {name!r}: masquerade works on the pod network only; use bridge")
    if "masquerade" in bindings and interface.get("macAddress") == _IN_POD_BRIDGE_MAC:
        found.invalid(f"{path}.macAddress", f"{_IN_POD_BRIDGE_MAC} belongs to the bridge in the pod; use another")
    if "bridge" in bindings and on_pod and not m.cluster.bridge_on_pod_network:
        found.invalid(f"{path}.name", f"interface {name!r}: no bridge is permitted on the pod network; use masquerade")
    if "passtBinding" in bindings:
        if not m.enabled("PasstBinding"):
            found.gate_is_off(f"{path}.name", "PasstBinding", f"interface {name!r} with passtBinding")
        if not on_pod:
            found.invalid(f"{path}.name", f"interface {name!r}: passtBinding works on the pod network only")


def _check_state(m: Machine, interface: Section, path: str, found: Findings) -> None:
    state, name = interface.get("state") or "", interface.get("name")
    field = f"{path}.state"
    if state not in _STATES:
        found.invalid(field, f"state {state!r} of interface {name!r} does not exist; use up, down or absent")
    if interface.get("sriov") is not None and state in ("up", "down"):
        found.invalid(field, f"the link of SR-IOV interface {name!r} cannot be set {state}; remove state")
    if state != "absent":
        return
    if interface.get("bridge") is None:
        found.invalid(field, f"interface {name!r} cannot be unplugged; only one with a bridge can be absent")
    default = next((n for n in m.networks if n.get("pod") is not None or read(n, "multus").get("default")), {})
    if default.get("name") == name:
        found.invalid(field, f"interface {name!r} is on the VM's default network and cannot be absent")


def _check_fields(interface: Section, path: str, found: Findings) -> None:
    name = interface.get("name") or ""
    if not _NAME.fullmatch(name):
        found.invalid(f"{path}.name", f"interface name {name!r} may only have letters, digits, '-' and '_'")
    model = interface.get("model")
    if model and model not in _MODELS:
        found.unsupported(f"{path}.model", f"model {model!r} does not exist; use one of {', '.join(_MODELS)}")
    mac = interface.get("macAddress")
    if mac and not _MAC.fullmatch(mac):
        found.invalid(f"{path}.macAddress", f"{mac!r} is not a MAC address; write it like 02:00:00:00:00:01")
    address = interface.get("pciAddress")
    if address and not PCI_ADDRESS.fullmatch(address):
        found.invalid(f"{path}.pciAddress", f"{address!r} is not a PCI address; write it like 0000:81:01.0")


def _check_ports(ports: Sequence[Section], path: str, found: Findings) -> None:
    names: set[str] = set()
    used: set[tuple[int, str]] = set()
    for i, port in enumerate(ports):
        field, name, number = f"{path}.ports[{i}]", port.get("name"), port.get("port") or 0
        protocol = port.get("protocol") or "TCP"
        if name:
            if name in names:
                found.duplicate(f"{field}.name", f"two ports are called {name!r}; rename one")
            if why := port_name_error(name):
                found.invalid(f"{field}.name", f"{name!r} is not a port name: {why}")
            names.add(name)
        if not number:
            found.required(f"{field}.port", "set port, a number from 1 to 65535")
        elif not 0 < number < 65536:
            found.invalid(f"{field}.port", f"port {number} does not exist; use 1 to 65535")
        elif (number, protocol) in used:
            found.duplicate(f"{field}.port", f"{protocol} port {number} is listed twice; remove one")
        used.add((number, protocol))
        if protocol not in ("TCP", "UDP"):
            found.invalid(f"{field}.protocol", f"protocol {protocol!r} is not forwarded; use TCP or UDP")


def _check_port_ranges(m: Machine, interface: Section, network: Section, path: str, found: Findings) -> None:
    ranges = interface.get("portRanges")
    if ranges is None:
        return
    if not m.enabled("PortRangesSpec"):
        found.gate_is_off(f"{path}.name", "PortRangesSpec", "portRanges")
        return
    if network.get("pod") is None:
        return
    if interface.get("ports") is not None:
        found.invalid(f"{path}.name", "an interface has ports or portRanges, not both; remove one")
    if interface.get("masquerade") is None:
        found.invalid(f"{path}.name", "portRanges work with masquerade only")
    if len(ranges) > _MOST_PORT_RANGES:
        found.invalid(f"{path}.portRanges", f"there are {len(ranges)} portRanges; {_MOST_PORT_RANGES} are allowed")
        return
    sound: dict[str, list[tuple[int, int]]] = {}
    for i, item in enumerate(ranges):
        field = f"{path}.portRanges[{i}]"
        start, end, protocol = item.get("start") or 0, item.get("end") or 0, item.get("protocol")
        if protocol not in ("TCP", "UDP"):
            found.invalid(f"{field}.protocol", f"protocol {protocol!r} is not forwarded; use TCP or UDP")
        elif not 0 < start < 65536:
            found.invalid(f"{field}.start", f"port {start} does not exist; use 1 to 65535")
        elif not 0 < end < 65536:
            found.invalid(f"{field}.end", f"port {end} does not exist; use 1 to 65535")
        elif start > end:
            found.invalid(f"{field}.start", f"start {start} is after end {end}; swap them")
        else:
            sound.setdefault(protocol, []).append((start, end))
    for protocol, spans in sound.items():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            if start <= end:
                found.invalid(f"{path}.portRanges", f"{protocol} portRanges overlap at port {start}; join them")


def _check_dhcp(m: Machine, options: Section, path: str, found: Findings) -> None:
    private = [option.get("option") for option in options.get("privateOptions") or ()]
    if len(set(private)) < len(private):
        found.invalid(m.path, "dhcpOptions.privateOptions has an option twice; remove one")
    if any(option not in _PRIVATE_OPTIONS for option in private):
        found.invalid(m.path, "dhcpOptions.privateOptions are numbered from 224 to 254; change the number")
    for i, server in enumerate(options.get("ntpServers") or ()):
        try:
            IPv4Address(server)
        except AddressValueError:
            found.invalid(f"{path}.dhcpOptions.ntpServers[{i}]", f"{server!r} is not an IPv4 address")


def claim_pairs(m: Machine) -> dict[str, int]:
    """claim/request of networks that come from resource claims -> index of the first network with it."""
    pairs: dict[str, int] = {}
    for i, network in enumerate(m.networks):
        claim = network.get("resourceClaim") or {}
        if claim.get("claimName") and claim.get("requestName"):
            pairs.setdefault(f"{claim['claimName']}/{claim['requestName']}", i)
    return pairs


def _check_claims(m: Machine, found: Findings) -> None:
    """Networks that are provided by dynamic resource allocation."""
    if not any(network.get("resourceClaim") is not None for network in m.networks):
        return
    if not m.enabled("NetworkDevicesWithDRA"):
        found.gate_is_off(m.at("networks"), "NetworkDevicesWithDRA", "a network with resourceClaim")
        return
    if any(network.get("multus") is not None for network in m.networks):
        found.invalid(m.at("networks"), "multus networks and resourceClaim networks cannot be mixed; use one kind")
        return
    interfaces = {i.get("name"): i for i in m.interfaces}
    claims = {claim.get("name") for claim in m.spec.get("resourceClaims") or ()}
    first = claim_pairs(m)
    for i, network in enumerate(m.networks):
        claim = network.get("resourceClaim")
        if claim is None:
            continue
        interface = interfaces.get(network.get("name"))
        if interface is not None and interface.get("sriov") is None and interface.get("binding") is None:
            found.invalid(
                m.at("domain.devices.interfaces"),
                f"network {network.get('name')!r} has a resourceClaim and needs an interface with sriov or binding",
            )
        path, name, request = m.at(f"networks[{i}]"), claim.get("claimName"), claim.get("requestName")
        for field in ("claimName", "requestName"):
            if not claim.get(field):
                found.required(f"{path}.resourceClaim.{field}", f"set {field} of the resourceClaim")
        if not name or not request:
            continue
        if name not in claims:
            found.not_found(f"{path}.resourceClaim.claimName", f"{name!r} is not in {m.at('resourceClaims')}; add it")
        if first[f"{name}/{request}"] != i:
            found.duplicate(path, f"request {request!r} of claim {name!r} is used by two networks; use another request")
