"""What a Pod asks to be attached to beside the cluster's network, and what a NetworkAttachmentDefinition says. Pure.

Both are written by whoever may write Pods or definitions: all of it is bounded and checked, and what is not done here
is refused by name instead of being overlooked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec

from virtfleet.kube.resource import Obj
from virtfleet.pods.networks import NETWORKS

GLOBAL = "default"
"""The namespace whose definitions every Pod may use, as with Multus' `namespaceIsolation`."""
MOST = 32  # networks of one Pod
_LONGEST = 1 << 16  # bytes of an annotation, or of a configuration
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_MAC = re.compile(r"[\da-f][02468ace](:[\da-f]{2}){5}", re.ASCII)
_TAKEN = ("lo", "eth0", "all", "default")
_MTU, _USUAL_MTU = (576, 65535), 1500
_BESIDE = ("tuning",)  # plugins that have nothing to do here: hardware addresses are set with the interface


class Unusable(Exception):
    """A network that a Pod cannot be attached to as things are; the message is for its owner."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network that a Pod asks for."""

    namespace: str = ""
    name: str = ""
    interface: str = ""
    mac: str = ""

    @property
    def network(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pool(msgspec.Struct, frozen=True):
    """Addresses that are given out one by one, by their number in the network."""

    network: IPv4Network | IPv6Network
    first: int
    last: int
    gateway: str

    def choose(self, taken: Collection[str]) -> str:
        """One that nobody has, with its prefix."""
        for number in range(self.first, min(self.last, self.first + len(taken) + 1) + 1):
            address = f"{self.network[number]}/{self.network.prefixlen}"
            if address not in taken and address.partition("/")[0] != self.gateway:
                return address
        raise Unusable(f"no address is free in {self.network}")


class Config(msgspec.Struct, frozen=True):
    """What a definition asks for: a bridge, and what its Pods get there."""

    mtu: int = _USUAL_MTU
    pools: tuple[Pool, ...] = ()


# --- what a Pod asks for


def requested(pod: Obj) -> list[Request]:
    """The networks that a Pod's annotation names: a list of objects, or `namespace/name@interface` with commas."""
    meta = pod["metadata"]
    text = str((meta.get("annotations") or {}).get(NETWORKS) or "").strip()
    if not text:
        return []
    if len(text) > _LONGEST:
        raise Unusable(f"annotation {NETWORKS} has more than {_LONGEST} characters; shorten it")
    try:
        elements = msgspec.json.decode(text, type=list[Request]) if text[0] in "[{" else _short(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unusable(f"annotation {NETWORKS} cannot be read: {error}") from None
    if len(elements) > MOST:
        raise Unusable(f"annotation {NETWORKS} names {len(elements)} networks; {MOST} are possible")
    requests = [_checked(each, f"net{number}", meta["namespace"]) for number, each in enumerate(elements, 1)]
    if len({request.interface for request in requests}) < len(requests):
        raise Unusable(f"annotation {NETWORKS} names an interface twice; rename one")
    return requests


def _short(text: str) -> list[Request]:
    requests = []
    for part in text.split(","):
        network, _, interface = part.strip().partition("@")
        namespace, _, name = network.rpartition("/")
        requests.append(Request(namespace, name, interface))
    return requests


def _checked(asked: Request, interface: str, own: str) -> Request:
    """With what it does not say itself."""
    request = Request(asked.namespace or own, asked.name, asked.interface or interface, asked.mac.lower())
    namespace, interface, mac = request.namespace, request.interface, request.mac
    if not _NAME.fullmatch(asked.name) or not _NAME.fullmatch(namespace):
        raise Unusable(f"{request.network} is no name of a NetworkAttachmentDefinition")
    if namespace not in (own, GLOBAL):
        said = f"definitions of namespace {namespace} are not for Pods of {own}; use one of {own} or of {GLOBAL}"
        raise Unusable(f"network {request.network}: {said}")
    if not _INTERFACE.fullmatch(interface) or interface in _TAKEN:
        raise Unusable(f"network {request.network}: no interface can be called {interface!r}")
    if mac and not _MAC.fullmatch(mac):
        raise Unusable(f"network {request.network}: {mac!r} is no hardware address of one interface")
    return request


# --- what a definition says


class _Range(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    subnet: str = ""
    range_start: str = ""
    range_end: str = ""
    gateway: str = ""


class _Ipam(_Range):
    """With its own range, or a list of them."""

    type: str = ""
    ranges: list[list[_Range]] = []


class _Plugin(msgspec.Struct):
    type: str = ""
    mtu: int = 0
    ipam: _Ipam | None = None


# What the bridge plugin of CNI does beside, and nobody does here.
_NOT_DONE = ("isGateway", "isDefaultGateway", "ipMasq", "vlan", "vlanTrunk", "macspoofchk", "portIsolation")


def config(text: object) -> Config:
    """What `spec.config` of a definition asks for. Raises Unusable, with the field and what to do."""
    if not isinstance(text, str) or not text.strip():
        raise Unusable('spec.config is empty; write {"cniVersion": "0.3.1", "type": "bridge"}')
    if len(text) > _LONGEST:
        raise Unusable(f"spec.config has more than {_LONGEST} characters; shorten it")
    try:
        whole = msgspec.json.decode(text, type=dict[str, Any])
        plugins = whole.get("plugins")
        chosen = _bridge(plugins if plugins is not None else [whole])
        plugin = msgspec.convert(chosen, _Plugin)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unusable(f"spec.config cannot be read: {error}") from None
    if asked := [field for field in _NOT_DONE if chosen.get(field)]:
        raise Unusable(f"spec.config: {', '.join(asked)} is not done by the local cluster; remove it")
    if plugin.mtu and not _MTU[0] <= plugin.mtu <= _MTU[1]:
        raise Unusable(f"spec.config: mtu {plugin.mtu} is not possible; use {_MTU[0]} to {_MTU[1]}")
    try:
        return Config(plugin.mtu or _USUAL_MTU, _pools(plugin.ipam or _Ipam()))
    except ValueError as error:
        raise Unusable(f"spec.config: ipam: {error}") from None


def _bridge(plugins: Any) -> dict[str, Any]:
    """The one plugin that attaches; others may stand beside it that have nothing to do."""
    listed = plugins if isinstance(plugins, list) and all(isinstance(p, dict) for p in plugins) else []
    others = [str(p.get("type") or "nothing")[:50] for p in listed if p.get("type") not in ("bridge", *_BESIDE)]
    bridges: list[dict[str, Any]] = [p for p in listed if p.get("type") == "bridge"]
    if others or len(bridges) != 1:
        has = f"type {others[0]}" if others else f"{len(bridges)} plugins of type bridge"
        raise Unusable(f"spec.config has {has}; the local cluster attaches to bridges only: use one of type bridge")
    return bridges[0]


def _pools(ipam: _Ipam) -> tuple[Pool, ...]:
    if not ipam.type:
        return ()
    if ipam.type != "host-local":
        raise ValueError(f"type {ipam.type[:50]!r} is not done; use host-local, or remove it")
    sets: Sequence[Sequence[_Range]] = ipam.ranges or ([[ipam]] if ipam.subnet else [])
    if not 0 < len(sets) <= 2 or any(len(each) != 1 for each in sets):
        raise ValueError("host-local needs a subnet, or one range for each family; write subnet")
    return tuple(_pool(each[0]) for each in sets)


def _pool(asked: _Range) -> Pool:
    network = ip_network(asked.subnet)
    if network.num_addresses < 4:
        raise ValueError(f"subnet {network} has no room; use a larger one")
    start, end = int(network.network_address), network.num_addresses - 1
    first = int(ip_address(asked.range_start)) - start if asked.range_start else 1
    last = int(ip_address(asked.range_end)) - start if asked.range_end else end - 1
    if not 0 < first <= last < end:
        raise ValueError(f"{asked.range_start}-{asked.range_end} is not a range within {network}")
    return Pool(network, first, last, str(ip_address(asked.gateway)) if asked.gateway else str(network[1]))
