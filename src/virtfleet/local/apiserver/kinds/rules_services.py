"""Services: addresses and ports are handed out here.

What is taken is read from the stored Services, so that nothing has to be kept in step with them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import TypeVar

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.metadata import dns_label, label_faults
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.store import Store

T = TypeVar("T")
HEADLESS = "None"
NODE_PORTS = range(30000, 32768)
FIRST_FREE = 10  # the addresses before it are for services that choose: kubernetes, dns


class Services:
    """Addresses and ports that nobody else has."""

    def __init__(self, stored: Store, network: ipaddress.IPv4Network) -> None:
        self._stored = stored
        self._network = network

    def rules(self) -> dict[str, Rules]:
        """By the storage name of the kind."""
        return {
            "/services": Rules(
                exclusive=True,  # addresses and ports are free only as long as nobody else takes them
                status={"loadBalancer": {}},
                selectable={"spec.clusterIP": "", "spec.type": ""},
                keep=_keep,
                complete=self._complete,
                faults=self._faults,
                on_update=self._update_faults,
            )
        }

    def _complete(self, obj: Obj) -> None:
        """Give it what it lacks."""
        _set_defaults(obj.setdefault("spec", {}))
        self._allocate(obj)

    def _faults(self, obj: Obj) -> list[Cause]:
        """What is wrong with the spec, or else with the choice of address and ports."""
        return list(_spec_faults(obj["spec"])) or list(self._allocation_faults(obj))

    def _update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """An address stays; only then is it looked at."""
        if subresource == "status":
            return []
        if obj["spec"].get("clusterIP") == old["spec"].get("clusterIP"):
            return self._faults(obj)
        why = causes.invalid("spec.clusterIPs[0]", obj["spec"].get("clusterIPs"), "field is immutable")
        return [*_spec_faults(obj["spec"]), why]

    def _allocate(self, obj: Obj) -> None:
        """Give the service the address and node ports that it lacks."""
        spec, others = obj["spec"], self._others(obj)
        if not spec.get("clusterIP"):
            spec["clusterIP"] = (spec.get("clusterIPs") or [""])[0] or self._free_address(others)
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if _has_node_ports(spec):
            taken = _node_ports([*others, obj])
            for port in spec.get("ports", ()):
                if not port.get("nodePort"):
                    port["nodePort"] = _first_free(NODE_PORTS, taken, "nodePort: range is full")
                    taken.add(port["nodePort"])

    def _others(self, obj: Obj) -> list[Obj]:
        services = self._stored.objects("/services")
        return [service for service in services if _identity(service) != _identity(obj)]

    def _free_address(self, others: list[Obj]) -> str:
        taken: set[str] = {service["spec"].get("clusterIP", "") for service in others}
        candidates = (str(self._network[n]) for n in range(FIRST_FREE, self._network.num_addresses - 1))
        return _first_free(candidates, taken, f"serviceIP: range {self._network} is full")

    def _allocation_faults(self, obj: Obj) -> Iterator[Cause]:
        """Addresses and ports that the writer chose must be valid and free."""
        spec, others = obj["spec"], self._others(obj)
        address = spec.get("clusterIP", HEADLESS)
        if address != HEADLESS and (why := self._unusable(address, others)):
            yield causes.invalid("spec.clusterIPs", [address], f"failed to allocate IP {address}: {why}")
        taken = _node_ports(others)
        for index, port in enumerate(spec.get("ports", ())):
            number = port.get("nodePort")
            if number and number not in NODE_PORTS:
                why = "provided port is not in the valid range. The range of valid ports is "
                why += f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
                yield causes.invalid(f"spec.ports[{index}].nodePort", number, why)
            elif number and number in taken:
                yield causes.invalid(f"spec.ports[{index}].nodePort", number, "provided port is already allocated")

    def _unusable(self, address: str, others: list[Obj]) -> str:
        try:
            inside = ipaddress.ip_address(address) in self._network
        except ValueError:
            return "must be a valid IP address, (e.g. 10.9.8.7)"
        if not inside:
            return f"provided IP is not in the valid range. The range of valid IPs is {self._network}"
        taken = any(other["spec"].get("clusterIP") == address for other in others)
        return "provided IP is already allocated" if taken else ""


def _identity(service: Obj) -> tuple[str | None, str | None]:
    return service["metadata"].get("namespace"), service["metadata"].get("name")


def _node_ports(services: list[Obj]) -> set[int]:
    return {port["nodePort"] for each in services for port in each["spec"].get("ports", ()) if "nodePort" in port}


def _first_free(candidates: Iterable[T], taken: set[T], full: str) -> T:
    for candidate in candidates:
        if candidate not in taken:
            return candidate
    raise ApiError("InternalError", f"failed to allocate a {full}")


def _has_node_ports(spec: Obj) -> bool:
    if spec.get("type") == "LoadBalancer":
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return spec.get("type") == "NodePort"


def _keep(obj: Obj, old: Obj, _subresource: str) -> None:
    """Keep what the writer left out."""
    spec, was = obj.setdefault("spec", {}), old["spec"]
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field in was:
            spec.setdefault(field, was[field])
    ports = {(p.get("protocol"), p.get("port")): p.get("nodePort") for p in was.get("ports", ())}
    for port in spec.get("ports", ()) if _has_node_ports(spec) else ():
        if kept := ports.get((port.get("protocol"), port.get("port"))):
            port.setdefault("nodePort", kept)


def _set_defaults(spec: Obj) -> None:
    """Defaults that depend on other fields."""
    spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports", ()):
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    else:
        spec.pop("externalTrafficPolicy", None)
        for port in spec.get("ports", ()):
            port.pop("nodePort", None)
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec.get("sessionAffinity") == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})


def _spec_faults(spec: Obj) -> Iterator[Cause]:
    ports = spec.get("ports", [])
    if not ports and spec.get("clusterIP") != HEADLESS:
        yield causes.required("spec.ports")
    if spec["type"] in ("NodePort", "LoadBalancer") and spec.get("clusterIP") == HEADLESS:
        yield causes.invalid("spec.clusterIPs[0]", HEADLESS, f"may not be set to 'None' for {spec['type']} services")
    yield from label_faults(spec.get("selector"), "spec.selector")
    names: set[str] = set()
    numbers: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        name, number = port.get("name", ""), port.get("port", 0)
        if not name and len(ports) > 1:
            yield causes.required(f"{at}.name")
        elif name and (why := dns_label(name)):
            yield causes.invalid(f"{at}.name", name, why)
        elif name in names:
            yield causes.duplicate(f"{at}.name", name)
        names.add(name)
        identity = (port.get("protocol", "TCP"), number)
        if identity in numbers:
            yield causes.duplicate(at, {"protocol": identity[0], "port": number})
        numbers.add(identity)
