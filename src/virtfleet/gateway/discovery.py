"""What clients and the API server read of `subresources.kubevirt.io` before they use it: discovery and OpenAPI. Pure.

Everything follows from the table of subresources.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import orjson

import virtfleet
from virtfleet.api.subresources import GROUP, TABLE, VERSIONS, VM, VMI, Subresource
from virtfleet.kube.resource import VMIS, VMS, Obj

_KINDS = {VM: VMS.kind, VMI: VMIS.kind, "expand-vm-spec": VMS.kind}
_ACTIONS = {"GET": "get", "PUT": "put"}


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


def groups() -> Obj:
    """All groups that virt-api serves."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


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
    return {
        "paths": {
            f"apis/{GROUP}/{version}": {
                "serverRelativeURL": f"/openapi/v3/apis/{GROUP}/{version}?hash={_digest(version)}"
            }
            for version in VERSIONS
        }
    }


@cache
def openapi(version: str) -> bytes:
    """OpenAPI v3 of one version."""
    document = {"openapi": "3.0.0", "info": _info(), "paths": _paths(version, _operation_v3)}
    return orjson.dumps(document)


@cache
def openapi_old() -> bytes:
    """OpenAPI v2 of all versions."""
    paths = {path: item for version in VERSIONS for path, item in _paths(version, _operation_v2).items()}
    return orjson.dumps({"swagger": "2.0", "info": _info(), "paths": paths})


def _digest(version: str) -> str:
    return hashlib.sha256(openapi(version)).hexdigest().upper()


def _info() -> Obj:
    return {"title": "VirtFleet subresources", "version": virtfleet.__version__}


def _paths(version: str, operation: Any) -> Obj:
    return {
        f"/apis/{GROUP}/{version}{path}": {_ACTIONS[entry.method]: operation(entry, version, path)}
        for entry in TABLE
        for path in entry.paths()
    }


def _operation(entry: Subresource, version: str, path: str) -> Obj:
    name = "".join(part.strip("{}").title() for part in path.split("/") if part)
    return {
        "operationId": f"{_ACTIONS[entry.method]}{version.title()}{name.replace('-', '')}",
        "description": entry.does,
        "tags": [GROUP],
        "responses": {"200": {"description": "OK"}},
    }


def _parameters(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _operation_v3(entry: Subresource, version: str, path: str) -> Obj:
    text = {"type": "string"}
    parameters = [{"name": name, "in": "path", "required": True, "schema": text} for name in _parameters(path)]
    body = {"requestBody": {"content": {"*/*": {"schema": {"type": "object"}}}}} if entry.method == "PUT" else {}
    return {**_operation(entry, version, path), "parameters": parameters, **body}


def _operation_v2(entry: Subresource, version: str, path: str) -> Obj:
    parameters: list[Obj] = [{"name": n, "in": "path", "required": True, "type": "string"} for n in _parameters(path)]
    if entry.method == "PUT":
        parameters.append({"name": "body", "in": "body", "schema": {"type": "object"}})
    return {**_operation(entry, version, path), "parameters": parameters}
