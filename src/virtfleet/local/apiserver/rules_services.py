"""Services: addresses and ports are handed out here.

What is taken is read from the stored Services, so that nothing has to be kept in step with them. A Service that is
still on its way to the store is not among those; a cursor that never gives the same address twice in a row covers the
time between.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

import orjson

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver import causes
from virtfleet.local.apiserver.kinds import Cause, Context, Rules, Stored
from virtfleet.local.apiserver.metadata import dns_label, label_faults

HEADLESS = "None"
NODE_PORTS = range(30000, 32768)
FIRST_FREE = 10  # the addresses before it are for services that choose: kubernetes, dns


class ServiceRules(Rules):
    exclusive = True  # addresses and ports are free only as long as nobody else takes them

    def __init__(self, stored: Stored, network: ipaddress.IPv4Network) -> None:
        self._stored = stored
        self._network = network
        self._next_address = FIRST_FREE
        self._next_port = 0

    def prepare_create(self, obj: Obj, ctx: Context) -> None:
        spec = obj.setdefault("spec", {})
        _complete(spec)
        self._allocate(obj)
        obj["status"] = {"loadBalancer": {}}

    def prepare_update(self, obj: Obj, old: Obj, ctx: Context) -> None:
        if ctx.subresource == "status":
            return
        spec, was = obj.setdefault("spec", {}), old["spec"]
        _complete(spec)
        if spec["type"] != "ExternalName" and was.get("type") != "ExternalName":
            for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                if field in was:
                    spec.setdefault(field, was[field])
            ports = {(p.get("protocol"), p.get("port")): p.get("nodePort") for p in was.get("ports", ())}
            for port in spec.get("ports", ()) if _has_node_ports(spec) else ():
                kept = ports.get((port.get("protocol"), port.get("port")))
                if kept:
                    port.setdefault("nodePort", kept)
        self._allocate(obj)

    def validate_create(self, obj: Obj, ctx: Context) -> list[Cause]:
        return list(_faults(obj["spec"])) + self._address_faults(obj)

    def validate_update(self, obj: Obj, old: Obj, ctx: Context) -> list[Cause]:
        if ctx.subresource == "status":
            return []
        found = list(_faults(obj["spec"]))
        spec, was = obj["spec"], old["spec"]
        if "ExternalName" not in (spec["type"], was.get("type")) and spec.get("clusterIP") != was.get("clusterIP"):
            found.append(causes.invalid("spec.clusterIPs[0]", spec.get("clusterIPs"), "field is immutable"))
        return found

    def fields(self, obj: Obj) -> Mapping[str, str]:
        spec = obj.get("spec", {})
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def _allocate(self, obj: Obj) -> None:
        """Give the service the address and node ports that it lacks."""
        spec = obj["spec"]
        if spec["type"] == "ExternalName":
            for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                spec.pop(field, None)
            return
        others = [service for service in self._services() if service["metadata"]["name"] != obj["metadata"].get("name")]
        if not spec.get("clusterIP"):
            spec["clusterIP"] = (spec.get("clusterIPs") or [""])[0] or self._free_address(others)
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if _has_node_ports(spec):
            taken = {p.get("nodePort") for s in [*others, obj] for p in s["spec"].get("ports", ())}
            for port in spec.get("ports", ()):
                if not port.get("nodePort"):
                    port["nodePort"] = self._free_port(taken)
                    taken.add(port["nodePort"])

    def _services(self) -> Iterator[Obj]:
        return (orjson.loads(record.data) for record in self._stored.scan("/services"))

    def _free_address(self, others: list[Obj]) -> str:
        taken = {service["spec"].get("clusterIP") for service in others}
        last = self._network.num_addresses - 1  # the broadcast address
        for _ in range(last):
            address = str(self._network[self._next_address])
            self._next_address = self._next_address + 1 if self._next_address + 1 < last else FIRST_FREE
            if address not in taken:
                return address
        raise ApiError("InternalError", f"failed to allocate a serviceIP: range {self._network} is full")

    def _free_port(self, taken: set[int | None]) -> int:
        for _ in NODE_PORTS:
            port = NODE_PORTS[self._next_port]
            self._next_port = (self._next_port + 1) % len(NODE_PORTS)
            if port not in taken:
                return port
        raise ApiError("InternalError", "failed to allocate a nodePort: range is full")

    def _address_faults(self, obj: Obj) -> list[Cause]:
        address = obj["spec"].get("clusterIP", HEADLESS)
        if address == HEADLESS:
            return []
        try:
            inside = ipaddress.ip_address(address) in self._network
        except ValueError:
            return [causes.invalid("spec.clusterIPs[0]", address, "must be a valid IP address, (e.g. 10.9.8.7)")]
        mine = (obj["metadata"].get("namespace"), obj["metadata"].get("name"))
        taken = (
            service["spec"].get("clusterIP") == address
            for service in self._services()
            if (service["metadata"].get("namespace"), service["metadata"]["name"]) != mine
        )
        why = ""
        if not inside:
            why = f"provided IP is not in the valid range. The range of valid IPs is {self._network}"
        elif any(taken):
            why = "provided IP is already allocated"
        if why:
            return [causes.invalid("spec.clusterIPs", [address], f"failed to allocate IP {address}: {why}")]
        return []


def _has_node_ports(spec: Obj) -> bool:
    if spec["type"] == "LoadBalancer":
        return bool(spec.get("allocateLoadBalancerNodePorts", True))
    return bool(spec["type"] == "NodePort")


def _complete(spec: Obj) -> None:
    """Defaults that depend on other fields."""
    spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports", ()):
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] != "ExternalName":
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


def _faults(spec: Obj) -> Iterator[Cause]:
    ports = spec.get("ports", [])
    if spec["type"] == "ExternalName":
        if not spec.get("externalName"):
            yield causes.required("spec.externalName")
    elif not ports and spec.get("clusterIP") != HEADLESS:
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
        if not 1 <= number <= 65535:
            yield causes.invalid(f"{at}.port", number, "must be between 1 and 65535, inclusive")
        identity = (port.get("protocol", "TCP"), number)
        if identity in numbers:
            yield causes.duplicate(at, {"protocol": identity[0], "port": number})
        numbers.add(identity)
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            yield causes.invalid(f"{at}.targetPort", target, "must be between 1 and 65535, inclusive")
        if port.get("nodePort") and port["nodePort"] not in NODE_PORTS:
            why = (
                f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            )
            yield causes.invalid(f"{at}.nodePort", port["nodePort"], why)
