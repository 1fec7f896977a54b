"""Whether the schema in a CustomResourceDefinition can be used, with a clear word about what cannot.

Every field has a type outside of anyOf and the like, so that pruning and defaulting know what to do without trying
alternatives; patterns compile, and defaults are what the schema allows. Kubernetes asks for more of a schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from virtfleet.local.apiserver.kinds.schema_validation import json_schema
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

TYPES = ("array", "boolean", "integer", "number", "object", "string")
_TYPE_REQUIRED = {
    "root": "must not be empty at the root",
    "field": "must not be empty for specified object fields",
    "item": "must not be empty for specified array items",
}


def faults(schema: dict[str, Any], field: str) -> list[Cause]:
    """What keeps a schema from being used."""
    return list(_faults(schema, field, "root"))


def _faults(schema: dict[str, Any], field: str, place: str) -> Iterator[Cause]:
    if "$ref" in schema:
        yield causes.forbidden(f"{field}.$ref", "$ref is not supported")
        return
    yield from _type_faults(schema, field, place)
    yield from _value_faults(schema, field)
    for name, part in schema.get("properties", {}).items():
        if not (place == "root" and name == "metadata"):
            yield from _faults(part, f"{field}.properties[{name}]", "field")
    if isinstance(schema.get("items"), dict):
        yield from _faults(schema["items"], f"{field}.items", "item")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _faults(schema["additionalProperties"], f"{field}.additionalProperties", "field")


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
