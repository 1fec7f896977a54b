"""OpenAPI v3: one document per group and version, and an index of them by hash.

What `kubectl explain`, `kubectl apply` and client-side validation read: the schemas, and of the paths only the
operations whose parameters and content types those look up. The index names every document's hash, so that clients
keep documents; only hashes are kept here, and made again only for groups whose kinds changed.

There is OpenAPI v2 too, in protobuf: kubectl reads it before it sends a List, and looks at the items of kinds that it
describes. Those are the built-in ones, with what kubectl's validation reads; items of other kinds are left to the
server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson
from aiohttp import web

from virtfleet import __version__
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.builtin import facts
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.objects.patching import accepted_patches
from virtfleet.local.apiserver.serving.discovery import Document, cached

ROOT = "/openapi/v3"
_V2 = "/openapi/v2"
_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class OpenApi:
    """Documents below /openapi, about the kinds of this server alone."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._hashes: dict[str, tuple[list[Kind], str]] = {}

    def handler(self, path: str) -> Document | None:
        """What answers for a path; None where there is no such document."""
        if path == ROOT:
            return self._index
        if path == _V2:
            return _serve_v2
        return self._document if path.removeprefix(f"{ROOT}/") in self._groups() else None

    async def _index(self, request: web.Request) -> web.StreamResponse:
        hashes = {name: self._hash(name, kinds) for name, kinds in self._groups().items()}
        paths = {name: {"serverRelativeURL": f"{ROOT}/{name}?hash={known}"} for name, known in hashes.items()}
        body = orjson.dumps({"paths": paths})
        return cached(request, body, _digest(body), "application/json")

    async def _document(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rstrip("/").removeprefix(f"{ROOT}/")
        kinds = self._groups()[name]
        digest = self._hash(name, kinds)
        answer = cached(request, _encoded(kinds), digest, "application/json")
        if request.query.get("hash") == digest:
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer

    def _groups(self) -> dict[str, list[Kind]]:
        groups: dict[str, list[Kind]] = {}
        for kind in self._kinds:
            groups.setdefault(kind.resource.root.lstrip("/"), []).append(kind)
        return groups

    def _hash(self, name: str, kinds: list[Kind]) -> str:
        known = self._hashes.get(name)
        if known is None or list(map(id, known[0])) != list(map(id, kinds)):
            known = self._hashes[name] = (kinds, _digest(_encoded(kinds)))
        return known[1]


def _digest(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest().upper()


def _encoded(kinds: list[Kind]) -> bytes:
    return orjson.dumps(document(kinds), option=orjson.OPT_SORT_KEYS)


def document(kinds: list[Kind]) -> Obj:
    """The OpenAPI document of the kinds of one group and version."""
    paths: Obj = {}
    schemas: Obj = {}
    for kind in kinds:
        paths |= _paths(kind)
        if kind.schema:
            schemas |= kind.schema.openapi()
    info = {"title": "Kubernetes", "version": __version__}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _paths(kind: Kind) -> Obj:
    resource = kind.resource
    root = f"{resource.root}/namespaces/{{namespace}}" if resource.namespaced else resource.root
    collection = f"{root}/{resource.plural}"
    one = {"patch": _operation(kind, "patch", accepted_patches(kind))} if "patch" in kind.verbs else {}
    one |= {"put": _operation(kind, "put", ["*/*"])} if "update" in kind.verbs else {}
    many = {"post": _operation(kind, "post", ["*/*"])} if "create" in kind.verbs else {}
    return {path: item for path, item in ((collection, many), (f"{collection}/{{name}}", one)) if item}


def _operation(kind: Kind, action: str, content_types: Iterable[str]) -> Obj:
    resource = kind.resource
    text = {"type": "string", "uniqueItems": True}
    return {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {part: getattr(resource, part) for part in ("group", "version", "kind")},
        "parameters": [
            {"name": name, "in": "query", "schema": text} for name in ("dryRun", "fieldManager", "fieldValidation")
        ],
        "requestBody": {"content": {str(name): {"schema": {"type": "object"}} for name in content_types}},
        "responses": {"200": {"description": "OK"}},
    }


async def _serve_v2(_: web.Request) -> web.StreamResponse:
    return web.Response(body=_v2(), content_type=_V2_TYPE)


@cache
def _v2() -> bytes:
    definitions = b"".join(_named(name, _v2_schema(schema)) for name, schema in facts().types.items())
    return _field(1, b"2.0") + _field(2, _field(1, b"Kubernetes")) + _field(9, definitions)


def _v2_schema(schema: dict[str, Any]) -> bytes:
    if "$ref" in schema:
        return _field(1, f"#/definitions/{schema['$ref']}".encode())
    parts = [_field(2, schema.get("format", "").encode())]
    parts += [_field(19, name.encode()) for name in schema.get("required", ())]
    if isinstance(schema.get("additionalProperties"), dict):
        parts.append(_field(21, _field(1, _v2_schema(schema["additionalProperties"]))))
    if type_ := "string" if "oneOf" in schema else schema.get("type", ""):  # a quantity, or a number or text
        parts.append(_field(22, _field(1, type_.encode())))
    if "items" in schema:
        parts.append(_field(23, _field(1, _v2_schema(schema["items"]))))
    if properties := schema.get("properties"):
        parts.append(_field(25, b"".join(_named(name, _v2_schema(part)) for name, part in properties.items())))
    if kinds := schema.get("x-kubernetes-group-version-kind"):
        parts.append(
            _field(31, _field(1, b"x-kubernetes-group-version-kind") + _field(2, _field(2, orjson.dumps(kinds))))
        )
    return b"".join(parts)


def _named(name: str, schema: bytes) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, schema))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)
