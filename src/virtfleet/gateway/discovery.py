"""What clients and the API server read of `subresources.kubevirt.io` before they use it: discovery and OpenAPI. Pure.

Everything follows from the table of subresources.
"""

from __future__ import annotations

import hashlib
from functools import cache

import orjson

import virtfleet
from virtfleet.api.subresources import GROUP, TABLE, VERSIONS, VM, VMI, Subresource
from virtfleet.kube.resource import VMIS, VMS, Obj

_KINDS = {VM: VMS.kind, VMI: VMIS.kind, "expand-vm-spec": VMS.kind}
_INFO = {"title": "VirtFleet subresources", "version": virtfleet.__version__}
# How the two versions of OpenAPI tell of a part of the path, and of what is sent.
_ANY: Obj = {"schema": {"type": "object"}}
_OPENAPI: Obj = {
    "path": {"schema": {"type": "string"}},
    "sent": [],
    "body": {"requestBody": {"content": {"*/*": _ANY}}},
}
_SWAGGER: Obj = {"path": {"type": "string"}, "sent": [{"name": "body", "in": "body", **_ANY}], "body": {}}


def group() -> Obj:
    """The group with its versions."""
    versions = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in VERSIONS]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": versions,
        "preferredVersion": versions[0],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    }


def resources(version: str) -> Obj:
    """What is namespaced: the rest is about the installation and no resource."""
    listed = [
        {
            "name": entry.rbac,
            "singularName": "",
            "namespaced": True,
            "group": VMS.group,
            "version": VMS.version,
            "kind": _KINDS[entry.resource],
            # Without a slash kubectl would take it for a kind of objects; it passes over what has no verbs.
            "verbs": [entry.verb] if entry.name else [],
        }
        for entry in TABLE
        if entry.namespaced
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": sorted(listed, key=lambda entry: str(entry["name"])),
    }


def openapi_index() -> Obj:
    """Where the OpenAPI v3 document of each version is; its hash says whether it is new."""
    paths = {}
    for version in VERSIONS:
        path, digest = f"apis/{GROUP}/{version}", hashlib.sha256(openapi(version)).hexdigest().upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


@cache
def openapi(version: str) -> bytes:
    """OpenAPI v3 of one version."""
    return orjson.dumps({"openapi": "3.0.0", "info": _INFO, "paths": _paths(version, _OPENAPI)})


def swagger() -> Obj:
    """OpenAPI v2 of all versions, which the API server adds to its own."""
    paths = {path: actions for version in VERSIONS for path, actions in _paths(version, _SWAGGER).items()}
    return {"swagger": "2.0", "info": _INFO, "paths": paths}


def _paths(version: str, dialect: Obj) -> Obj:
    return {
        f"/apis/{GROUP}/{version}{path}": {entry.method.lower(): _operation(entry, version, path, dialect)}
        for entry in TABLE
        for path in entry.paths()
    }


def _operation(entry: Subresource, version: str, path: str, dialect: Obj) -> Obj:
    parts = [part for part in path.split("/") if part]
    name = "".join(part.strip("{}").title() for part in parts)
    puts = entry.method == "PUT"
    return {
        "operationId": f"{entry.method.lower()}{version.title()}{name.replace('-', '')}",
        "description": entry.does,
        "tags": [GROUP],
        "responses": {"200": {"description": "OK"}},
        "parameters": [
            *(
                {"name": part[1:-1], "in": "path", "required": True} | dialect["path"]
                for part in parts
                if part[0] == "{"
            ),
            *(dialect["sent"] if puts else ()),
        ],
        **(dialect["body"] if puts else {}),
    }
