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
        self._kinds, self._extra_groups = kinds, extra_groups

    def handler(self, path: str) -> Document | None:
        """What answers for a path; None where there is no such document."""
        match path.strip("/").split("/"):
            case ["api" | "apis"]:
                return self._root
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group]:
                return self._group(group)
            case ["apis", group, version]:
                return self._resources(group, version)
        return None

    async def _root(self, request: web.Request) -> web.StreamResponse:
        legacy = request.path.rstrip("/") == "/api"
        if AGGREGATED in request.headers.get("Accept", "").replace(" ", ""):
            groups = [group for group in self._groups() if legacy == (not group["metadata"]["name"])]
            document = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}}
            body = orjson.dumps({**document, "items": groups})
            return cached(request, body, hashlib.sha256(body).hexdigest().upper(), AGGREGATED_TYPE)
        if not legacy:
            return _json({"kind": "APIGroupList", "apiVersion": "v1", "groups": self._named()})
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}
        return _json({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]})

    def _group(self, name: str) -> Document | None:
        named = next((group for group in self._named() if group["name"] == name), None)
        return _constant({"kind": "APIGroup", "apiVersion": "v1", **named}) if named else None

    def _resources(self, group: str, version: str) -> Document | None:
        """None for what other servers serve: they are asked themselves."""
        resources = self._entries().get((group, version))
        if resources is None:
            return None
        about = {"apiVersion": "v1", "groupVersion": f"{group}/{version}" if group else version}
        return _constant({"kind": "APIResourceList", **about, "resources": resources})

    def _entries(self) -> dict[tuple[str, str], list[Obj]]:
        """APIResource entries by group and version."""
        entries: dict[tuple[str, str], list[Obj]] = {}
        for kind in sorted(self._kinds, key=lambda kind: kind.resource.plural):
            entries.setdefault((kind.resource.group, kind.resource.version), []).extend(_listed(kind))
        return entries

    def _groups(self) -> list[Obj]:
        """APIGroupDiscovery objects: built-in groups in Kubernetes' order, then the others by name."""
        versions: dict[str, list[Obj]] = {}
        for (group, version), entries in self._entries().items():
            versions.setdefault(group, []).append(aggregated_version(group, version, entries))
        for other in self._extra_groups():
            versions.setdefault(other["metadata"]["name"], []).extend(other["versions"])
        order = {name: number for number, name in enumerate(facts().groups)}
        return [
            {"metadata": {"name": name}, "versions": sorted(versions[name], key=lambda v: version_rank(v["version"]))}
            for name in sorted(versions, key=lambda name: (order.get(name, len(order)), name))
        ]

    def _named(self) -> list[Obj]:
        """The groups that have a name, in the old form."""
        return [_legacy_group(group) for group in self._groups() if group["metadata"]["name"]]


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
    entry |= {"shortNames": list(kind.short_names)} if kind.short_names else {}
    entry |= {"categories": list(kind.categories)} if kind.categories else {}
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
        own = {"group": group, "version": version, "kind": ""}
        response = own | {field: entry[field] for field in own if entry.get(field)}
        scope = "Namespaced" if entry.get("namespaced") else "Cluster"
        new = {"resource": plural, "responseKind": {**response, "kind": ""}, "scope": scope}
        resource = resources.setdefault(plural, {**new, "singularResource": "", "verbs": []})
        if subresource:
            below = {"subresource": subresource, "responseKind": response, "verbs": entry.get("verbs") or []}
            resource.setdefault("subresources", []).append(below)
        else:
            resource |= {"responseKind": response, "singularResource": entry.get("singularName", "")}
            resource |= {field: entry[field] for field in ("verbs", "shortNames", "categories") if field in entry}
    freshness = "Stale" if stale else "Current"
    return {"version": version, "freshness": freshness, "resources": list(resources.values())}


def _legacy_group(group: Obj) -> Obj:
    name = group["metadata"]["name"]
    versions = [{"groupVersion": f"{name}/{v['version']}", "version": v["version"]} for v in group["versions"]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


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
