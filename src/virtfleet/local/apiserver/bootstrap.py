"""Everything that a fresh cluster has before anybody asks for anything, put there again on every start.

As in Kubernetes, default roles and bindings get back what they lack and keep what was added to them, unless their
annotation rbac.authorization.kubernetes.io/autoupdate is "false".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import is_already_exists, is_not_found
from virtfleet.kube.resource import (
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLES,
    SERVICES,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from virtfleet.local.apiserver.rights import policy
from virtfleet.local.apiserver.rights.pki import FRONT_PROXY, Pki
from virtfleet.local.apiserver.serving.discovery import local_api_services

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
Complete = Callable[[Obj], Obj | None]  # what there is -> the patch that completes it, or None


@dataclass(frozen=True, slots=True)
class Front:
    """Where pods find the API server: the cluster IP of the Service `kubernetes`, and what is behind it."""

    cluster_ip: str
    address: str
    port: int


async def bootstrap(api: KubeApi, pki: Pki, front: Front, storage_classes: Sequence[Obj] = ()) -> None:
    """Create or complete every default object. Safe to repeat, and to be killed at any point."""
    await asyncio.gather(*(_ensure(api, NAMESPACES, {"metadata": {"name": n}}) for n in SYSTEM_NAMESPACES))
    await asyncio.gather(
        *(_ensure(api, CLUSTER_ROLES, role, _lacking("rules", role)) for role in policy.cluster_roles()),
        *(_ensure(api, CLUSTER_ROLE_BINDINGS, b, _lacking("subjects", b)) for b in policy.cluster_role_bindings()),
        *(_ensure(api, ROLES, role, _lacking("rules", role)) for role in policy.roles()),
        *(_ensure(api, PRIORITY_CLASSES, c) for c in _priority_classes()),
        *(_ensure(api, API_SERVICES, s) for s in local_api_services()),
        *(_ensure(api, STORAGE_CLASSES, c) for c in storage_classes),
        _ensure(api, CONFIG_MAPS, (published := _authentication(pki)), _differing(published, "data")),
        _ensure(api, SERVICES, _service(front)),
        _ensure(api, ENDPOINT_SLICES, (behind := _endpoints(front)), _differing(behind, "endpoints", "ports")),
    )


async def _ensure(api: KubeApi, res: Resource, obj: Obj, complete: Complete = lambda _: None) -> None:
    meta = obj["metadata"]
    namespace = meta.get("namespace")
    try:
        found = await api.get(res, meta["name"], namespace)
    except Exception as error:
        if not is_not_found(error):
            raise
        try:
            await api.create(res, {"apiVersion": res.api_version, "kind": res.kind, **obj}, namespace)
        except Exception as race:
            if not is_already_exists(race):
                raise
        return
    if patch := complete(found):
        await api.patch(res, meta["name"], patch, namespace)


def _lacking(field: str, wanted: Obj) -> Complete:
    """Adds the entries of a list that are missing, where the administrator has not said no."""

    def complete(found: Obj) -> Obj | None:
        if (found["metadata"].get("annotations") or {}).get(policy.AUTO_UPDATE) == "false":
            return None
        have = found.get(field) or []
        lacking = [entry for entry in wanted.get(field) or () if entry not in have]
        return {field: have + lacking} if lacking else None

    return complete


def _differing(wanted: Obj, *fields: str) -> Complete:
    """Sets fields that the cluster itself owns."""

    def complete(found: Obj) -> Obj | None:
        different = {f: wanted[f] for f in fields if found.get(f) != wanted[f]}
        return different or None

    return complete


def _priority_classes() -> list[Obj]:
    about = "Used for system critical pods that must "
    return [
        {
            "metadata": {"name": "system-node-critical"},
            "value": 2_000_001_000,
            "description": about + "not be moved from their current node.",
        },
        {
            "metadata": {"name": "system-cluster-critical"},
            "value": 2_000_000_000,
            "description": about + "run in the cluster, but can be moved to another node if necessary.",
        },
    ]


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
    return {
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [front.address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": front.port, "protocol": "TCP"}],
    }
