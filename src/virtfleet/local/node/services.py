"""Services of the cluster as destination NAT: one nftables table, replaced as a whole whenever something changed.

`render` is a pure function from Services and EndpointSlices to nft's language; the transaction that deletes and
makes the table anew is atomic, and connections that are already translated do not notice. One process of the cluster
runs `ServiceNetwork`; the nodes share the machine's network, so one table serves them all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import ENDPOINT_SLICES, SERVICES, Obj
from virtfleet.local.apiserver.extensions.services import ready
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.work.commands import run

_GATHERING = 0.05  # seconds in which further changes join the same transaction
_TABLE = "table"  # the one key of the controller
_PLACE = "ipv4_addr . inet_proto . inet_service"  # what a Service is reached by


@dataclass(frozen=True, slots=True)
class Frontend:
    """One port of one Service and the endpoints behind it."""

    name: str
    address: str
    protocol: str
    port: int
    node_port: int
    backends: tuple[tuple[str, int], ...]

    @property
    def place(self) -> str:
        return f"{self.address} . {self.protocol} . {self.port}"

    @property
    def chain(self) -> str:
        return "to_" + hashlib.sha256(self.name.encode()).hexdigest()[:16]


def frontends(services: Iterable[Obj], slices: Iterable[Obj]) -> list[Frontend]:
    """What can be reached by a cluster address, sorted, so that equal input gives equal text."""
    endpoints: dict[tuple[str, str], list[Obj]] = defaultdict(list)
    for piece in slices:
        if piece.get("addressType", "IPv4") == "IPv4":
            owner = (piece["metadata"].get("labels") or {}).get("kubernetes.io/service-name", "")
            endpoints[piece["metadata"]["namespace"], owner].append(piece)
    reachable = []
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        pieces = endpoints[meta["namespace"], meta["name"]]
        if spec.get("clusterIP") in (None, "", "None"):
            continue
        for port in spec.get("ports") or ():
            backends = {backend for piece in pieces for backend in ready(piece, port.get("name") or "")}
            reachable.append(
                Frontend(
                    name=f"{meta['namespace']}/{meta['name']}:{port.get('name') or port['port']}",
                    address=spec["clusterIP"],
                    protocol=(port.get("protocol") or "TCP").lower(),
                    port=port["port"],
                    node_port=port.get("nodePort") or 0,
                    backends=tuple(sorted(backends)),
                )
            )
    return sorted(reachable, key=lambda f: f.name)


def render(network: ClusterNetwork, frontends: list[Frontend]) -> str:
    """The cluster's table as a transaction for `nft -f`."""
    served = [f for f in frontends if f.backends]
    key = "ip daddr . meta l4proto . th dport"
    maps = [
        _elements("map services", f"{_PLACE} : verdict", [f"{f.place} : goto {f.chain}" for f in served]),
        _elements(
            "map node_ports",
            "inet_proto . inet_service : verdict",
            [f"{f.protocol} . {f.node_port} : goto {f.chain}" for f in served if f.node_port],
        ),
        _elements("set unserved", _PLACE, [f.place for f in frontends if not f.backends]),
        # A pod that reaches itself through its own Service would see its own address as the sender.
        _elements("set itself", "ipv4_addr . ipv4_addr", sorted({f"{a} . {a}" for f in served for a, _ in f.backends})),
    ]
    chains = [_service_chain(f) for f in served]
    translate = [f"{key} vmap @services", "fib daddr type local meta l4proto . th dport vmap @node_ports"]
    hooks = [
        _chain("refuse_routed", "filter hook prerouting priority -110", [f"{key} @unserved reject"]),
        _chain(
            "refuse_local",
            "filter hook output priority -110",
            [
                f"{key} @unserved reject",
                # Pods would go around the machine, and replies would miss the translation.
                f"ip daddr {network.pods} icmp type redirect drop",
            ],
        ),
        _chain("routed", "nat hook prerouting priority -100", translate),
        _chain("local", "nat hook output priority -100", translate),
        _chain(
            "leaving",
            "nat hook postrouting priority 100",
            [
                "ct status dnat ip saddr . ip daddr @itself masquerade",
                f'ip saddr {network.pods} ip daddr != {network.pods} oifname != "{network.bridge}" masquerade',
            ],
        ),
    ]
    body = "\n".join([*maps, *chains, *hooks])
    return f"table ip {network.table}\ndelete table ip {network.table}\ntable ip {network.table} {{\n{body}\n}}\n"


def _elements(head: str, kind: str, elements: list[str]) -> str:
    listed = f"; elements = {{ {', '.join(elements)} }}" if elements else ""
    return f"  {head} {{ type {kind}{listed}; }}"


def _service_chain(frontend: Frontend) -> str:
    choices = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(frontend.backends))
    pick = f"numgen random mod {len(frontend.backends)} map {{ {choices} }}"
    return (
        f'  chain {frontend.chain} {{ comment "{frontend.name}"; meta l4proto {frontend.protocol} dnat ip to {pick}; }}'
    )


def _chain(name: str, hook: str, rules: list[str]) -> str:
    lines = "\n".join(f"    {rule}" for rule in rules)
    return f"  chain {name} {{\n    type {hook};\n{lines}\n  }}"


class ServiceNetwork:
    """Keeps the cluster's table in step with its Services."""

    def __init__(self, api: KubeApi, network: ClusterNetwork) -> None:
        self._network = network
        self._services: Cache[Obj] = Cache(api, SERVICES, decode=orjson.loads)
        self._slices: Cache[Obj] = Cache(api, ENDPOINT_SLICES, decode=orjson.loads)
        self._applied = ""
        self._controller = Controller("service-network", self._apply)
        self._controller.queue.add(_TABLE)
        for cache in (self._services, self._slices):
            self._controller.follow(cache, lambda _: [_TABLE])

    async def run(self) -> None:
        """Follow until cancelled. The table stays: connections outlive this process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._services.run())
            group.create_task(self._slices.run())
            group.create_task(self._controller.run())

    async def _apply(self, _: str) -> None:
        await asyncio.sleep(_GATHERING)
        wanted = render(self._network, frontends(self._services.list(), self._slices.list()))
        if wanted != self._applied:
            await run("nft", "-f", "-", feed=wanted)
            self._applied = wanted
