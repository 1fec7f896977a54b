"""Endpoints and EndpointSlices: the addresses of the pods behind each Service that selects pods."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from typing import Any

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_already_exists
from virtfleet.kube.resource import ENDPOINT_SLICES, ENDPOINTS, SERVICES, Obj, Resource
from virtfleet.local.apiserver.metadata import timestamp
from virtfleet.local.controllers import ownership
from virtfleet.local.controllers.nodes import Node
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.podstore import PodStore
from virtfleet.local.controllers.presence import remove
from virtfleet.local.controllers.revisions import template_hash

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
ZONE = "topology.kubernetes.io/zone"
SLICE_LIMIT = 100
ENDPOINTS_LIMIT = 1000

Port = tuple[str, str, int, str]  # name, protocol, number, appProtocol


def selects(service: Obj, pod: Pod) -> bool:
    selector = service["spec"].get("selector")
    return bool(selector) and selector.items() <= pod.labels.items()


def ports(service: Obj, pod: Pod) -> tuple[Port, ...]:
    """The service's ports as this pod has them: a named target may be another number in each pod."""
    found: list[Port] = []
    for port in service["spec"].get("ports") or ():
        protocol, want = port.get("protocol", "TCP"), port.get("targetPort") or port["port"]
        if isinstance(want, str) and not want.isdigit():
            named = (n for name, p, n in pod.template.ports if (name, p) == (want, protocol))
            number = next(named, None)
        else:
            number = int(want)
        if number is not None:
            found.append((port.get("name", ""), protocol, number, port.get("appProtocol", "")))
    return tuple(found)


def family(address: str) -> str:
    return "IPv6" if ipaddress.ip_address(address).version == 6 else "IPv4"


def families(service: Obj) -> list[str]:
    return service["spec"].get("ipFamilies") or ["IPv4"]


def slices(service: Obj, pods: Iterable[Pod], zones: dict[str, str]) -> dict[str, Obj]:
    """The service's EndpointSlices by name. Names follow from the content, so that none is ever made twice."""
    groups: dict[tuple[str, tuple[Port, ...]], list[Obj]] = {}
    for pod in sorted(pods, key=lambda p: p.name):
        if pod.terminal or not selects(service, pod):
            continue
        for kind in families(service):
            addresses = [ip for ip in pod.ips if family(ip) == kind]
            if addresses:
                groups.setdefault((kind, ports(service, pod)), []).append(_endpoint(service, pod, addresses, zones))
    if not groups:
        groups = {(kind, ()): [] for kind in families(service)}
    meta = service["metadata"]
    result = {}
    for (kind, its_ports), members in groups.items():
        for start in range(0, max(len(members), 1), SLICE_LIMIT):
            number = start // SLICE_LIMIT
            name = f"{meta['name']}-{template_hash([meta['uid'], kind, its_ports, number], 0)[:5]}"
            result[name] = {
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": _labels(service, slice_labels=True),
                    "ownerReferences": [ownership.reference(service, SERVICES)],
                },
                "addressType": kind,
                "endpoints": members[start : start + SLICE_LIMIT],
                "ports": [_port(p) for p in its_ports],
            }
    return result


def _labels(service: Obj, *, slice_labels: bool) -> dict[str, str]:
    labels = dict(service["metadata"].get("labels") or {})
    if service["spec"].get("clusterIP") in ("None", "", None):
        labels[HEADLESS] = ""
    if slice_labels:
        labels |= {SERVICE_NAME: service["metadata"]["name"], MANAGED_BY: MANAGER}
    return labels


def _endpoint(service: Obj, pod: Pod, addresses: list[str], zones: dict[str, str]) -> Obj:
    terminating = pod.deleting is not None
    endpoint: Obj = {
        "addresses": addresses,
        "conditions": {
            "ready": bool(service["spec"].get("publishNotReadyAddresses")) or (pod.ready and not terminating),
            "serving": pod.ready,
            "terminating": terminating,
        },
        "targetRef": _target(pod),
    }
    if pod.node:
        endpoint["nodeName"] = pod.node
    if zone := zones.get(pod.node):
        endpoint["zone"] = zone
    if hostname := _hostname(service, pod):
        endpoint["hostname"] = hostname
    return endpoint


def _target(pod: Pod) -> Obj:
    return {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def _hostname(service: Obj, pod: Pod) -> str:
    return pod.template.hostname if pod.template.subdomain == service["metadata"]["name"] else ""


def _port(port: Port) -> Obj:
    name, protocol, number, app = port
    return {"name": name, "protocol": protocol, "port": number} | ({"appProtocol": app} if app else {})


def endpoints(service: Obj, pods: Iterable[Pod]) -> Obj:
    """The older form: one object, addresses of one family, ready ones apart from the others."""
    kind = families(service)[0]
    publish = bool(service["spec"].get("publishNotReadyAddresses"))
    subsets: dict[tuple[Port, ...], dict[str, list[Obj]]] = {}
    count = 0
    for pod in sorted(pods, key=lambda p: p.name):
        if pod.terminal or not selects(service, pod) or (pod.deleting is not None and not publish):
            continue
        address = next((ip for ip in pod.ips if family(ip) == kind), "")
        if not address or count >= ENDPOINTS_LIMIT:
            continue
        count += 1
        entry: Obj = {"ip": address, "targetRef": _target(pod)}
        if pod.node:
            entry["nodeName"] = pod.node
        if hostname := _hostname(service, pod):
            entry["hostname"] = hostname
        place = "addresses" if pod.ready or publish else "notReadyAddresses"
        subsets.setdefault(ports(service, pod), {}).setdefault(place, []).append(entry)
    listed = [
        {**lists, **({"ports": [_port(p) for p in its_ports]} if its_ports else {})}
        for its_ports, lists in sorted(subsets.items(), key=lambda item: repr(item[0]))
        if its_ports or not service["spec"].get("ports")
    ]
    meta = service["metadata"]
    return {
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": _labels(service, slice_labels=False),
        },
        "subsets": listed,
    }


class Endpoints:
    """The controller. Services without a selector have endpoints that somebody else writes."""

    def __init__(
        self,
        api: KubeApi,
        services: Cache[Obj],
        slices: Cache[Obj],
        endpoints: Cache[Obj],
        pods: PodStore,
        nodes: Cache[Node],
    ) -> None:
        self._api = api
        self._services = services
        self._slices = slices
        self._endpoints = endpoints
        self._pods = pods
        self._nodes = nodes
        self._controller = Controller("endpoints", self.reconcile, [nodes], workers=5)
        self._controller.follow(services)
        self._controller.follow(endpoints)
        self._controller.follow(slices, _service_of)
        self._controller.follow(pods.cache, self._services_of)

    async def run(self) -> None:
        await self._controller.run()

    def _services_of(self, pod: Pod) -> Iterable[str]:
        for service in self._services.by_index("namespace", pod.namespace):
            if selects(service, pod):
                yield f"{pod.namespace}/{service['metadata']['name']}"

    async def reconcile(self, key: str) -> None:
        """Write the slices and the endpoints that the service should have."""
        service = self._services.get(key)
        namespace = key.partition("/")[0]
        if service is None:
            # Slices have the service as their owner; the endpoints object goes by its name only.
            if (left := self._endpoints.get(key)) and _is_ours(left):
                await remove(self._api, ENDPOINTS, left)
            return
        if service["metadata"].get("deletionTimestamp") or not service["spec"].get("selector"):
            return
        if service["spec"].get("type") == "ExternalName":
            return
        pods = [p for p in self._pods.in_namespace(namespace) if p.ips and selects(service, p)]
        zones = {n.name: n.labels[ZONE] for n in self._nodes.list() if ZONE in n.labels}
        wanted = slices(service, pods, zones)
        for found in self._slices.by_index("service", key):
            if found["metadata"]["name"] not in wanted and _is_managed(found):
                await remove(self._api, ENDPOINT_SLICES, found)
        for name, piece in wanted.items():
            await self._put(ENDPOINT_SLICES, self._slices, piece, self._slices.get(f"{namespace}/{name}"))
        await self._put(ENDPOINTS, self._endpoints, endpoints(service, pods), self._endpoints.get(key))

    async def _put(self, res: Resource, cache: Cache[Obj], wanted: Obj, there: Obj | None) -> None:
        """Create or replace, if it is not so already."""
        content = {k: v for k, v in wanted.items() if k != "metadata"}
        meta = wanted["metadata"]
        if there is not None and _same(there, content, meta["labels"]):
            return
        notes = {TRIGGER: timestamp(time.time())}
        obj: dict[str, Any] = {
            "apiVersion": res.api_version,
            "kind": res.kind,
            **content,
            "metadata": {**meta, "annotations": notes},
        }
        if there is None:
            try:
                answer = await self._api.create(res, obj, meta["namespace"])
            except ApiError as error:
                if not is_already_exists(error):
                    raise
                answer = await self._api.get(res, meta["name"], meta["namespace"])
        else:
            obj["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
            answer = await self._api.replace(res, obj)
        cache.observe(answer)


def _same(there: Obj, content: Obj, labels: dict[str, str]) -> bool:
    has = {k: there.get(k) or [] for k in content if isinstance(content[k], list)}
    wants = {k: v for k, v in content.items() if isinstance(v, list)}
    return has == wants and (there["metadata"].get("labels") or {}) == labels


def _is_managed(piece: Obj) -> bool:
    return (piece["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER


def _is_ours(obj: Obj) -> bool:
    return TRIGGER in (obj["metadata"].get("annotations") or {})


def _service_of(piece: Obj) -> Iterable[str]:
    name = (piece["metadata"].get("labels") or {}).get(SERVICE_NAME)
    return [f"{piece['metadata']['namespace']}/{name}"] if name and _is_managed(piece) else []
