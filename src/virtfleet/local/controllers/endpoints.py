"""EndpointSlices: the addresses of the pods behind each Service that selects pods.

The older Endpoints objects, which Kubernetes has deprecated, are not written: nothing here reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import ENDPOINT_SLICES, SERVICES, Obj
from virtfleet.local.controllers.caches import SERVICE_NAME, Caches, service_of
from virtfleet.local.controllers.pods import Pod, owned, template_hash

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"


def selects(service: Obj, pod: Pod) -> bool:
    selector = service["spec"].get("selector")
    return bool(selector) and selector.items() <= pod.labels.items()


def ports(service: Obj, pod: Pod) -> list[Obj]:
    """The service's ports as this pod has them: a named target may be another number in each pod."""
    numbered: list[Obj] = []
    for port in service["spec"].get("ports") or ():
        protocol, want = port.get("protocol", "TCP"), str(port.get("targetPort") or port["port"])
        named = (n for name, p, n in pod.template.ports if (name, p) == (want, protocol))
        number = int(want) if want.isdigit() else next(named, None)
        if number is not None:
            app = {"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {}
            numbered.append({"name": port.get("name", ""), "protocol": protocol, "port": number, **app})
    return numbered


def slices(service: Obj, pods: Iterable[Pod]) -> dict[str, Obj]:
    """The service's EndpointSlices by name. Names follow from the content, so that none is ever made twice.

    Pods may have addresses of both families; Services of the local cluster have IPv4 only.
    """
    meta = service["metadata"]
    labels = {**(meta.get("labels") or {}), SERVICE_NAME: meta["name"], MANAGED_BY: MANAGER}
    result: dict[str, Obj] = {}

    def slice_of(its_ports: list[Obj]) -> Obj:
        name = f"{meta['name']}-{template_hash([meta['uid'], its_ports])[:5]}"
        made = owned(ENDPOINT_SLICES, service, SERVICES, name=name, labels=labels)
        return result.setdefault(name, {**made, "addressType": "IPv4", "endpoints": [], "ports": its_ports})

    for pod in sorted(pods, key=lambda p: p.name):
        address = next((ip for ip in pod.ips if ":" not in ip), "")
        if address and not pod.terminal and selects(service, pod):
            slice_of(ports(service, pod))["endpoints"].append(_endpoint(service, pod, address))
    if not result:
        slice_of([])
    return result


def _endpoint(service: Obj, pod: Pod, address: str) -> Obj:
    terminating = pod.deleting is not None
    return {
        "addresses": [address],
        "conditions": {
            "ready": bool(service["spec"].get("publishNotReadyAddresses")) or (pod.ready and not terminating),
            "serving": pod.ready,
            "terminating": terminating,
        },
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        **({"nodeName": pod.node} if pod.node else {}),
    }


class Endpoints:
    """The controller. Services without a selector have endpoints that somebody else writes."""

    def __init__(self, caches: Caches) -> None:
        self._services, self._slices, self._pods = caches.services, caches.slices, caches.pods
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
            there = self._slices.get(f"{namespace}/{name}")
            if there is None:
                await self._slices.create(piece, namespace)
            elif not _same(there, piece):
                version = there["metadata"]["resourceVersion"]
                await self._slices.replace({**piece, "metadata": {**piece["metadata"], "resourceVersion": version}})


def _same(there: Obj, wanted: Obj) -> bool:
    lists = all((there.get(field) or []) == wanted[field] for field in ("endpoints", "ports"))
    return lists and (there["metadata"].get("labels") or {}) == wanted["metadata"]["labels"]
