"""OpenAPI v2 in protobuf: kubectl reads it before it sends a List, and looks at the items of kinds that it describes.

Those are the built-in ones, with what kubectl's validation reads; items of other kinds are left to the server.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from aiohttp import web

from virtfleet.local.apiserver.kinds.builtin import facts

ROOT = "/openapi/v2"
_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


async def serve(_: web.Request) -> web.StreamResponse:
    """The document."""
    return web.Response(body=_document(), content_type=_TYPE)


@cache
def _document() -> bytes:
    definitions = b"".join(_named(name, _schema(schema)) for name, schema in facts().types.items())
    return _field(1, b"2.0") + _field(2, _field(1, b"Kubernetes")) + _field(9, definitions)


def _schema(schema: dict[str, Any]) -> bytes:
    if "$ref" in schema:
        return _field(1, f"#/definitions/{schema['$ref']}".encode())
    parts = [_field(2, schema.get("format", "").encode())]
    parts += [_field(19, name.encode()) for name in schema.get("required", ())]
    if isinstance(schema.get("additionalProperties"), dict):
        parts.append(_field(21, _field(1, _schema(schema["additionalProperties"]))))
    if type_ := "string" if "oneOf" in schema else schema.get("type", ""):  # a quantity, or a number or text
        parts.append(_field(22, _field(1, type_.encode())))
    if "items" in schema:
        parts.append(_field(23, _field(1, _schema(schema["items"]))))
    if properties := schema.get("properties"):
        parts.append(_field(25, b"".join(_named(name, _schema(part)) for name, part in properties.items())))
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
