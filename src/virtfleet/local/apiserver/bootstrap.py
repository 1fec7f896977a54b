"""Everything that a fresh cluster has before anybody asks for anything, put there again on every start.

As in Kubernetes, default roles and bindings get back what they lack and keep what was added to them, unless their
annotation rbac.authorization.kubernetes.io/autoupdate is "false".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import orjson
import yaml

from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CRDS,
    ENDPOINT_SLICES,
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from virtfleet.local.apiserver.objects.store import Change, Store
from virtfleet.local.apiserver.rights.pki import FRONT_PROXY, Pki

ROOT_CA = "kube-root-ca.crt"
AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
Complete = Callable[[Obj, Obj], Obj]  # what is wanted, what there is -> the patch that completes it


@dataclass(frozen=True, slots=True)
class Front:
    """Where pods find the API server: the cluster IP of the Service `kubernetes`, and what is behind it."""

    cluster_ip: str
    address: str
    port: int


async def bootstrap(api: KubeApi, pki: Pki, front: Front) -> None:
    """Create or complete every default object. Safe to repeat, and to be killed at any point."""
    await asyncio.gather(*(_ensure(api, NAMESPACES, {"metadata": {"name": n}}) for n in SYSTEM_NAMESPACES))
    await asyncio.gather(
        *(_ensure(api, kind, obj, _lacking) for kind, obj in default_objects()),
        _ensure(api, CONFIG_MAPS, _authentication(pki), _differing("data")),
        _ensure(api, SERVICES, _service(front)),
        _ensure(api, ENDPOINT_SLICES, _endpoints(front), _differing("endpoints", "ports")),
    )


def default_objects() -> list[tuple[Resource, Obj]]:
    """What is in bootstrap.yaml: roles and bindings, marked as the cluster's own, and what else it begins with."""
    plain, rights = (PRIORITY_CLASSES, STORAGE_CLASSES, CRDS), (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES)
    kinds = {res.kind: res for res in (*plain, *rights)}
    text = resources.files(__package__).joinpath("bootstrap.yaml").read_text()
    objects = [(kinds[obj["kind"]], obj) for obj in yaml.load_all(text, Loader=yaml.CSafeLoader)]
    for res, obj in objects:
        if res in rights:
            obj["metadata"].setdefault("labels", {})["kubernetes.io/bootstrapping"] = "rbac-defaults"
            obj["metadata"]["annotations"] = {AUTO_UPDATE: "true"}
    return objects


async def _ensure(api: KubeApi, res: Resource, obj: Obj, complete: Complete = lambda wanted, present: {}) -> None:
    meta = obj["metadata"]
    namespace = meta.get("namespace")
    with ignoring(is_not_found):
        if patch := complete(obj, await api.get(res, meta["name"], namespace)):
            await api.patch(res, meta["name"], patch, namespace)
        return
    with ignoring(is_already_exists):
        await api.create(res, {"apiVersion": res.api_version, "kind": res.kind, **obj}, namespace)


def _lacking(wanted: Obj, present: Obj) -> Obj:
    """Adds rules and subjects that are missing, where the administrator has not said no."""
    if (present["metadata"].get("annotations") or {}).get(AUTO_UPDATE) == "false":
        return {}
    patch: Obj = {}
    for field in ("rules", "subjects"):
        have = present.get(field) or []
        if lacking := [entry for entry in wanted.get(field) or () if entry not in have]:
            patch[field] = have + lacking
    return patch


def _differing(*fields: str) -> Complete:
    """Sets fields that the cluster itself owns."""
    return lambda wanted, present: {f: wanted[f] for f in fields if present.get(f) != wanted[f]}


def _authentication(pki: Pki) -> Obj:
    """What aggregated servers check their callers with."""

    def names(*values: str) -> str:
        return orjson.dumps(values).decode()

    return {
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {
            "client-ca-file": pki.authority.bundle.decode(),
            "requestheader-client-ca-file": pki.front_proxy_authority.bundle.decode(),
            "requestheader-allowed-names": names(FRONT_PROXY),
            "requestheader-username-headers": names("X-Remote-User"),
            "requestheader-group-headers": names("X-Remote-Group"),
            "requestheader-uid-headers": names("X-Remote-Uid"),
            "requestheader-extra-headers-prefix": names("X-Remote-Extra-"),
        },
    }


def _service(front: Front) -> Obj:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": front.port}
    return {
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {"type": "ClusterIP", "clusterIP": front.cluster_ip, "ports": [port]},
    }


def _endpoints(front: Front) -> Obj:
    labels = {"kubernetes.io/service-name": "kubernetes"}
    return {
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [front.address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": front.port, "protocol": "TCP"}],
    }


class NamespaceDefaults:
    """Gives every namespace the service account `default`, and the certificate authority that its pods trust (`bundle`,
    in PEM). Run `controller`."""

    def __init__(self, store: Store, api: KubeApi, bundle: str) -> None:
        self._store = store
        self._api = api
        self._data = {"ca.crt": bundle}
        self.controller = Controller("namespace-defaults", self.reconcile)
        store.follow("/namespaces", self._changed)
        for storage in ("/serviceaccounts", "/configmaps"):
            store.listen(storage, self._changed)

    def _changed(self, change: Change) -> None:
        record = change.record
        if record.storage == "/namespaces":
            self.controller.queue.add(record.name)
        elif record.name in ("default", ROOT_CA):
            self.controller.queue.add(record.namespace)

    async def reconcile(self, namespace: str) -> None:
        """Give a namespace what it lacks."""
        space = self._store.read("/namespaces", "", namespace)
        if space is not None and not space["metadata"].get("deletionTimestamp"):
            authority = {"metadata": {"name": ROOT_CA, "namespace": namespace}, "data": self._data}
            await _ensure(self._api, SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": namespace}})
            await _ensure(self._api, CONFIG_MAPS, authority, _differing("data"))
