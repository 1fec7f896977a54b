"""Discovery: which groups, versions and resources the server has, in the old form and in the aggregated one.

Both forms are made from lists of resources in the old form, which is also what aggregated servers say of themselves;
their groups come through `extra_groups`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.builtin import facts
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds

Document = Callable[[web.Request], Awaitable[web.StreamResponse]]

AGGREGATED = "as=APIGroupDiscoveryList"
AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sorts versions as Kubernetes does, preferred one first: v2, v1, v1beta2, v1alpha1, then names without order."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    stability = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stability, -int(match[1]), -int(match[3] or 0), version)


class Discovery:
    """Documents below /api and /apis. `extra_groups` gives APIGroupDiscovery objects of aggregated servers."""

    def __init__(self, kinds: Kinds, extra_groups: Callable[[], list[Obj]] = list) -> None:
        self._kinds = kinds
        self._extra_groups = extra_groups

    def handler(self, path: str) -> Document | None:
        """What answers for a path; None where there is no such document."""
        parts = path.strip("/").split("/")
        if path in ("/api", "/apis"):
            return self._root
        if parts[0] == "api" and len(parts) == 2:
            return self._resources("", parts[1])
        if parts[0] == "apis" and len(parts) == 2:
            return self._group(parts[1])
        if parts[0] == "apis" and len(parts) == 3:
            return self._resources(parts[1], parts[2])
        return None

    async def _root(self, request: web.Request) -> web.StreamResponse:
        legacy = request.path.rstrip("/") == "/api"
        if AGGREGATED in request.headers.get("Accept", "").replace(" ", ""):
            return _aggregated(request, self._core() if legacy else self._named())
        if not legacy:
            groups = [_legacy_group(group) for group in self._named()]
            return _json({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}
        return _json({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]})

    def _group(self, name: str) -> Document | None:
        groups = [group for group in self._named() if group["metadata"]["name"] == name]
        if not groups:
            return None
        return _constant({"kind": "APIGroup", "apiVersion": "v1", **_legacy_group(groups[0])})

    def _resources(self, group: str, version: str) -> Document | None:
        """None for what other servers serve: they are asked themselves."""
        kinds = [k for k in self._kinds if (k.resource.group, k.resource.version) == (group, version)]
        if not kinds:
            return None
        resources = [entry for kind in sorted(kinds, key=_plural) for entry in _listed(kind)]
        group_version = f"{group}/{version}" if group else version
        return _constant(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
        )

    def _core(self) -> list[Obj]:
        return [group for group in self._own_groups() if not group["metadata"]["name"]]

    def _named(self) -> list[Obj]:
        """Built-in groups in Kubernetes' order, then the others by name."""
        order = {name: number for number, name in enumerate(facts().groups)}
        merged: dict[str, list[Obj]] = {}
        for group in [*self._own_groups(), *self._extra_groups()]:
            if name := group["metadata"]["name"]:
                merged.setdefault(name, []).extend(group["versions"])
        names = sorted(merged, key=lambda name: (order.get(name, len(order)), name))
        return [_group_of(name, merged[name]) for name in names]

    def _own_groups(self) -> list[Obj]:
        groups: dict[str, dict[str, list[Kind]]] = {}
        for kind in sorted(self._kinds, key=_plural):
            groups.setdefault(kind.resource.group, {}).setdefault(kind.resource.version, []).append(kind)
        return [
            _group_of(
                group,
                [
                    aggregated_version(group, version, [entry for kind in kinds for entry in _listed(kind)])
                    for version, kinds in versions.items()
                ],
            )
            for group, versions in groups.items()
        ]


def _plural(kind: Kind) -> str:
    return kind.resource.plural


def _group_of(name: str, versions: list[Obj]) -> Obj:
    return {"metadata": {"name": name}, "versions": sorted(versions, key=lambda v: version_rank(v["version"]))}


def _listed(kind: Kind) -> list[Obj]:
    """APIResource entries: the resource, then its subresources."""
    resource = kind.resource
    namespaced = resource.namespaced
    entry: Obj = {
        "name": resource.plural,
        "singularName": kind.singular,
        "namespaced": namespaced,
        "kind": resource.kind,
        "verbs": [verb for verb in _CUSTOM_VERBS if verb in kind.verbs] if kind.custom else sorted(kind.verbs),
    }
    entry |= {
        field: list(names)
        for field, names in (("shortNames", kind.short_names), ("categories", kind.categories))
        if names
    }
    entries = [entry]
    for name, verbs in sorted(kind.subresources.items()):
        group, version, of = kind.subresource_kinds.get(name, (resource.group, resource.version, resource.kind))
        below: Obj = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": namespaced, "kind": of}
        if (group, version) != (resource.group, resource.version):
            below |= {"group": group, "version": version}
        entries.append({**below, "verbs": sorted(verbs)})
    return entries


def aggregated_version(group: str, version: str, listed: list[Obj], *, stale: bool = False) -> Obj:
    """An APIVersionDiscovery from the entries of an APIResourceList, subresources below their resources."""
    resources: dict[str, Obj] = {}
    for entry in listed:
        plural, _, subresource = entry["name"].partition("/")
        response = {
            "group": entry.get("group") or group,
            "version": entry.get("version") or version,
            "kind": entry.get("kind", ""),
        }
        resource = resources.setdefault(
            plural,
            {
                "resource": plural,
                "responseKind": {**response, "kind": ""},
                "scope": "Namespaced" if entry.get("namespaced") else "Cluster",
                "singularResource": "",
                "verbs": [],
            },
        )
        if subresource:
            below = {"subresource": subresource, "responseKind": response, "verbs": entry.get("verbs") or []}
            resource.setdefault("subresources", []).append(below)
        else:
            resource["responseKind"] = response
            resource["singularResource"] = entry.get("singularName", "")
            for field in ("verbs", "shortNames", "categories"):
                if field in entry:
                    resource[field] = entry[field]
    freshness = "Stale" if stale else "Current"
    return {"version": version, "freshness": freshness, "resources": list(resources.values())}


def _legacy_group(group: Obj) -> Obj:
    name = group["metadata"]["name"]
    versions = [{"groupVersion": f"{name}/{v['version']}", "version": v["version"]} for v in group["versions"]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _aggregated(request: web.Request, groups: list[Obj]) -> web.Response:
    body = orjson.dumps(
        {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups}
    )
    return cached(request, body, hashlib.sha256(body).hexdigest().upper(), AGGREGATED_TYPE)


def cached(request: web.Request, body: bytes, digest: str, content_type: str) -> web.Response:
    """An answer that clients may ask to be spared when they have it already."""
    headers = {"ETag": f'"{digest}"', "Content-Type": content_type, "Vary": "Accept"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers)


def _json(document: Any) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


def _constant(document: Any) -> Document:
    async def answer(request: web.Request) -> web.StreamResponse:
        return _json(document)

    return answer
