"""Whether the schema in a CustomResourceDefinition is structural, with a clear word about what is not.

A structural schema gives every field a type outside of anyOf and the like, so that pruning and defaulting know what to
do without trying alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from virtfleet.local.apiserver.kinds.registry import Cause
from virtfleet.local.apiserver.kinds.schema_validation import json_schema
from virtfleet.local.apiserver.objects import causes

TYPES = ("array", "boolean", "integer", "number", "object", "string")
_TYPE_REQUIRED = {
    "root": "must not be empty at the root",
    "field": "must not be empty for specified object fields",
    "item": "must not be empty for specified array items",
}
# What only the structural part may say.
_NOT_IN_ALTERNATIVES = ("type", "additionalProperties", "default", "title", "description", "nullable")


def faults(schema: dict[str, Any], field: str) -> list[Cause]:
    """What keeps a schema from being structural."""
    return list(_faults(schema, field, "root"))


def _faults(schema: dict[str, Any], field: str, place: str) -> Iterator[Cause]:
    if "$ref" in schema:
        yield causes.forbidden(f"{field}.$ref", "$ref is not supported")
        return
    yield from _type_faults(schema, field, place)
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield causes.forbidden(f"{field}.uniqueItems", why)
    if schema.get("properties") and schema.get("additionalProperties"):
        yield causes.forbidden(
            f"{field}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    yield from _list_faults(schema, field)
    yield from _value_faults(schema, field)
    for name, part in schema.get("properties", {}).items():
        if not (place == "root" and name == "metadata"):
            yield from _faults(part, f"{field}.properties[{name}]", "field")
    if isinstance(schema.get("items"), dict):
        yield from _faults(schema["items"], f"{field}.items", "item")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _faults(schema["additionalProperties"], f"{field}.additionalProperties", "field")
    for key in ("allOf", "anyOf", "oneOf"):
        for index, part in enumerate(schema.get(key, ())):
            yield from _alternative_faults(schema, part, f"{field}.{key}[{index}]")


def _type_faults(schema: dict[str, Any], field: str, place: str) -> Iterator[Cause]:
    type_ = schema.get("type", "")
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not type_ and (place == "root" or not free):
        yield causes.required(f"{field}.type", _TYPE_REQUIRED[place])
    elif type_ and type_ not in TYPES:
        yield causes.unsupported(f"{field}.type", type_, TYPES)
    elif place == "root" and type_ != "object":
        yield causes.invalid(f"{field}.type", type_, "must be object at the root")
    elif schema.get("x-kubernetes-embedded-resource") and type_ != "object":
        yield causes.invalid(f"{field}.type", type_, "must be object if x-kubernetes-embedded-resource is true")
    if type_ == "array" and not isinstance(schema.get("items"), dict):
        yield causes.required(f"{field}.items", "must be specified")


def _list_faults(schema: dict[str, Any], field: str) -> Iterator[Cause]:
    list_type = schema.get("x-kubernetes-list-type")
    if list_type is None:
        return
    if schema.get("type") != "array":
        why = "must be array if x-kubernetes-list-type is specified"
        yield causes.invalid(f"{field}.type", schema.get("type", ""), why)
    if list_type not in ("atomic", "set", "map"):
        yield causes.unsupported(f"{field}.x-kubernetes-list-type", list_type, ["atomic", "map", "set"])
    if list_type == "map" and not schema.get("x-kubernetes-list-map-keys"):
        why = "must not be empty if x-kubernetes-list-type is map"
        yield causes.required(f"{field}.x-kubernetes-list-map-keys", why)


def _value_faults(schema: dict[str, Any], field: str) -> Iterator[Cause]:
    """Patterns that do not compile, and defaults that the schema itself refuses."""
    if "pattern" in schema:
        try:
            jsonschema_rs.Draft4Validator({"pattern": schema["pattern"]})
        except jsonschema_rs.ValidationError as error:
            why = f"must be a valid regular expression, but isn't: {error.message}"
            yield causes.invalid(f"{field}.pattern", schema["pattern"], why)
            return
    if "default" in schema:
        try:
            jsonschema_rs.Draft4Validator(json_schema(schema)).validate(schema["default"])
        except jsonschema_rs.ValidationError as error:
            yield causes.invalid(f"{field}.default", schema["default"], f"must validate: {error.message}")


def _alternative_faults(schema: dict[str, Any], part: dict[str, Any], field: str) -> Iterator[Cause]:
    if schema.get("x-kubernetes-int-or-string"):
        return  # there the types may be said once more, in anyOf
    for key in _NOT_IN_ALTERNATIVES:
        if part.get(key):
            yield causes.forbidden(f"{field}.{key}", "must be empty to be structural")
    for name, inner in part.get("properties", {}).items():
        known = schema.get("properties", {}).get(name, {})
        yield from _alternative_faults(known, inner, f"{field}.properties[{name}]")
