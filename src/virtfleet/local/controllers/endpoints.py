"""EndpointSlices: the addresses of the pods behind each Service that selects pods.

The older Endpoints objects, which Kubernetes has deprecated, are not written: nothing here reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import is_already_exists
from virtfleet.kube.resource import ENDPOINT_SLICES, SERVICES, Obj, owner_reference
from virtfleet.local.controllers.caches import SERVICE_NAME, Caches, service_of
from virtfleet.local.controllers.pods import Pod, template_hash

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"

Port = tuple[str, str, int, str]  # name, protocol, number, appProtocol


def selects(service: Obj, pod: Pod) -> bool:
    selector = service["spec"].get("selector")
    return bool(selector) and selector.items() <= pod.labels.items()


def ports(service: Obj, pod: Pod) -> tuple[Port, ...]:
    """The service's ports as this pod has them: a named target may be another number in each pod."""
    numbered: list[Port] = []
    for port in service["spec"].get("ports") or ():
        protocol, want = port.get("protocol", "TCP"), port.get("targetPort") or port["port"]
        if isinstance(want, str) and not want.isdigit():
            named = (n for name, p, n in pod.template.ports if (name, p) == (want, protocol))
            number = next(named, None)
        else:
            number = int(want)
        if number is not None:
            numbered.append((port.get("name", ""), protocol, number, port.get("appProtocol", "")))
    return tuple(numbered)


def slices(service: Obj, pods: Iterable[Pod]) -> dict[str, Obj]:
    """The service's EndpointSlices by name. Names follow from the content, so that none is ever made twice."""
    groups: dict[tuple[Port, ...], list[Obj]] = {}
    for pod in sorted(pods, key=lambda p: p.name):
        address = _address(pod)
        if address and not pod.terminal and selects(service, pod):
            groups.setdefault(ports(service, pod), []).append(_endpoint(service, pod, address))
    meta = service["metadata"]
    result = {}
    for its_ports, members in (groups or {(): []}).items():
        name = f"{meta['name']}-{template_hash([meta['uid'], its_ports, 0])[:5]}"
        result[name] = {
            "apiVersion": ENDPOINT_SLICES.api_version,
            "kind": ENDPOINT_SLICES.kind,
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": _labels(service),
                "ownerReferences": [owner_reference(service, SERVICES)],
            },
            "addressType": "IPv4",
            "endpoints": members,
            "ports": [_port(p) for p in its_ports],
        }
    return result


def _labels(service: Obj) -> dict[str, str]:
    labels = dict(service["metadata"].get("labels") or {})
    if service["spec"].get("clusterIP") in ("None", "", None):
        labels[HEADLESS] = ""
    return labels | {SERVICE_NAME: service["metadata"]["name"], MANAGED_BY: MANAGER}


def _address(pod: Pod) -> str:
    """Pods may have addresses of both families; Services of the local cluster have IPv4 only."""
    return next((ip for ip in pod.ips if ":" not in ip), "")


def _endpoint(service: Obj, pod: Pod, address: str) -> Obj:
    terminating = pod.deleting is not None
    endpoint: Obj = {
        "addresses": [address],
        "conditions": {
            "ready": bool(service["spec"].get("publishNotReadyAddresses")) or (pod.ready and not terminating),
            "serving": pod.ready,
            "terminating": terminating,
        },
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }
    if pod.node:
        endpoint["nodeName"] = pod.node
    if pod.template.subdomain == service["metadata"]["name"] and pod.template.hostname:
        endpoint["hostname"] = pod.template.hostname
    return endpoint


def _port(port: Port) -> Obj:
    name, protocol, number, app = port
    return {"name": name, "protocol": protocol, "port": number} | ({"appProtocol": app} if app else {})


class Endpoints:
    """The controller. Services without a selector have endpoints that somebody else writes."""

    def __init__(self, caches: Caches) -> None:
        self._services, self._slices, self._pods = caches.services, caches.slices, caches.pods
        self._api = caches.api
        self.controller = Controller("endpoints", self.reconcile, workers=5)
        self.controller.follow(self._services)
        self.controller.follow(self._slices, service_of)
        self.controller.follow(self._pods, self._services_of)

    def _services_of(self, pod: Pod) -> Iterable[str]:
        return [key_of(s) for s in self._services.by_index("namespace", pod.namespace) if selects(s, pod)]

    async def reconcile(self, key: str) -> None:
        """Write the slices that the service should have; they go with it, because it owns them."""
        service = self._services.get(key)
        if service is None or service["metadata"].get("deletionTimestamp") or not service["spec"].get("selector"):
            return
        namespace = service["metadata"]["namespace"]
        wanted = slices(service, self._pods.by_index("namespace", namespace))
        for piece in self._slices.by_index("service", key):
            managed = piece["metadata"]["labels"].get(MANAGED_BY) == MANAGER
            if managed and piece["metadata"]["name"] not in wanted:
                await self._slices.remove(key_of(piece), piece["metadata"]["uid"])
        for name, piece in wanted.items():
            await self._put(piece, self._slices.get(f"{namespace}/{name}"))

    async def _put(self, wanted: Obj, there: Obj | None) -> None:
        """Create or replace, if it is not so already."""
        if there is None:
            try:
                await self._slices.create(wanted, wanted["metadata"]["namespace"])
                return
            except Exception as error:
                there = await self._slices.find(key_of(wanted))
                if not is_already_exists(error) or there is None:
                    raise
        if not _same(there, wanted):
            meta = {**wanted["metadata"], "resourceVersion": there["metadata"]["resourceVersion"]}
            self._slices.observe(await self._api.replace(ENDPOINT_SLICES, {**wanted, "metadata": meta}))


def _same(there: Obj, wanted: Obj) -> bool:
    lists = all((there.get(field) or []) == wanted[field] for field in ("endpoints", "ports"))
    return lists and (there["metadata"].get("labels") or {}) == wanted["metadata"]["labels"]
