"""Validation against a schema, by jsonschema-rs, in the words of Kubernetes.

jsonschema-rs and not Python's `re` also because `$` there matches before a final newline, which a CRD's pattern must
not. Validators are compiled at first use: most kinds are never written in the life of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import orjson

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

if TYPE_CHECKING:
    from virtfleet.local.apiserver.kinds.schema import SchemaNode

# Keywords that mean the same in CRDs and in JSON Schema draft 4.
_KEPT = (
    "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems",
    "minItems", "uniqueItems", "multipleOf", "required", "maxProperties", "minProperties",
)  # fmt: skip
# Formats that Kubernetes checks and that mean the same to jsonschema-rs; Kubernetes ignores the ones it does not know.
_FORMATS = ("date-time", "date", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
# What is said of a value, by the keyword that it does not keep to.
_DETAILS = {
    "minimum": "{should} be greater than or equal to {limit}",
    "exclusiveMinimum": "{should} be greater than {limit}",
    "maximum": "{should} be less than or equal to {limit}",
    "exclusiveMaximum": "{should} be less than {limit}",
    "minLength": "{should} be at least {limit} chars long",
    "minItems": "{should} have at least {limit} items",
    "minProperties": "{should} have at least {limit} properties",
    "pattern": "{should} match '{pattern}'",
    "multipleOf": "{should} be a multiple of {multiple_of}",
    "format": "{body} must be of type {format}: {value}",
    "uniqueItems": "{body} shouldn't contain duplicates",
    "anyOf": '"{field}" must validate at least one schema (anyOf)',
    "oneOf": '"{field}" must validate one and only one schema (oneOf). Found {valid} valid',
    "not": '"{field}" must not validate the schema (not)',
}
_TYPES = {"NoneType": "null", "bool": "boolean", "str": "string", "int": "integer", "float": "number", "dict": "object"}
_INTEGERS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an OpenAPI schema."""
    result: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if "$ref" in schema:
        reference = {"$ref": f"#/definitions/{schema['$ref']}"}
        if schema.get("nullable"):
            return {"anyOf": [reference, {"type": "null"}]}
        result["allOf"] = [reference]
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        types = ["integer", "string"]
    else:
        types = [schema["type"]] if schema.get("type") else []
    if types:
        result["type"] = [*types, "null"] if schema.get("nullable") else types
    if "enum" in schema:
        result["enum"] = [*schema["enum"], None] if schema.get("nullable") else schema["enum"]
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            result[key] = [json_schema(part) for part in schema[key]]
    if "not" in schema:
        result["not"] = json_schema(schema["not"])
    if "properties" in schema:
        result["properties"] = {name: json_schema(part) for name, part in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = json_schema(schema[key])
    _add_format(schema.get("format"), result)
    return result


def _add_format(format_: str | None, result: dict[str, Any]) -> None:
    format_ = "date-time" if format_ == "datetime" else format_
    if format_ in _FORMATS:
        result["format"] = format_
    elif format_ == "byte":
        result["allOf"] = [*result.get("allOf", ()), {"pattern": _BASE64}]
    elif format_ in _INTEGERS and "type" in result:
        low, high = _INTEGERS[format_]
        result["allOf"] = [*result.get("allOf", ()), {"minimum": low, "maximum": high}]


@dataclass(frozen=True)
class Validator:
    """Finds the faults of objects. `make` gives the JSON Schema; it is asked for at the first validation."""

    make: Callable[[], dict[str, Any]]
    typed: bool

    @cached_property
    def _compiled(self) -> jsonschema_rs.Draft4Validator:
        return jsonschema_rs.Draft4Validator(self.make(), validate_formats=True)

    def faults(self, obj: Obj, root: SchemaNode) -> list[Cause]:
        """What is wrong with an object whose shape is right."""
        faults: list[Cause] = []
        if not self._compiled.is_valid(obj):
            faults = [cause for error in self._compiled.iter_errors(obj) if (cause := self._cause(error))]
        if not self.typed:
            _check_lists(root, obj, [], faults)
        return faults

    def _cause(self, error: jsonschema_rs.ValidationError) -> Cause | None:
        path: list[str | int] = list(error.instance_path)
        if not self.typed:
            return _cause(error, causes.field_path(path), " in body should")
        if error.kind.name == "required" and path[:1] in (["status"], ["metadata"]):
            return None  # the zero value: Kubernetes writes the status itself, and metadata.py looks at metadata
        if error.instance == "" and error.kind.name in ("minLength", "pattern"):
            return causes.required(causes.field_path(path))
        if error.kind.name == "not":
            return causes.forbidden(causes.field_path(path), "this API server does not do that; leave it out")
        return _cause(error, causes.field_path(path), " must")


def _cause(error: jsonschema_rs.ValidationError, field: str, must: str) -> Cause:
    value: Any = error.instance
    kind: dict[str, Any] = error.kind.as_dict()
    body = f"{field} in body"
    match error.kind.name:
        case "required":
            return causes.required(causes.field_path([p for p in (field, kind["property"]) if p]))
        case "type":
            type_ = _TYPES.get(type(value).__name__, "array")
            wanted = ",".join(t for t in kind["types"] if t != "null")
            why = f"{body} must be of type {wanted}: {causes.quoted(type_)}"
            return causes.invalid(field, type_, why, "FieldValueTypeInvalid")
        case "enum":
            options = [o if isinstance(o, str) else causes.quoted(o) for o in kind["options"] if o is not None]
            return causes.unsupported(field, value, options)
        case "maxLength":
            return causes.too_long(field, kind["limit"])
        case "maxItems" | "maxProperties":
            return causes.too_many(field, len(value), kind["limit"])
        case "pattern" if kind["pattern"] == _BASE64:
            detail = f"{body} must be of type byte: {causes.quoted(value)}"
        case name if name in _DETAILS:
            should = f"{field}{must}" if "body" in must else must.strip()
            valid = "none" if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.OneOfNotValid) else "several"
            known = {"should": should, "body": body, "field": field, "valid": valid, "value": causes.quoted(value)}
            detail = _DETAILS[name].format_map(kind | known)
        case _:
            detail = error.message
    return causes.invalid(field, value, detail)


def _check_lists(node: SchemaNode, value: Any, path: list[str | int], faults: list[Cause]) -> None:
    """Duplicates in lists of type set or map, and embedded objects that do not say what they are."""
    if isinstance(value, dict):
        if node.embedded:
            faults += [causes.required(causes.field_path([*path, f]), "must not be empty")
                      for f in ("apiVersion", "kind") if not value.get(f)]  # fmt: skip
        for key, part in value.items():
            if isinstance(part, dict | list) and (child := node.fields.get(key) or node.values):
                _check_lists(child, part, [*path, key], faults)
    elif node.items:
        if node.list_type in ("set", "map"):
            seen: set[bytes] = set()
            for index, item in enumerate(value):
                key = item
                if node.list_type == "map" and isinstance(item, dict):
                    key = {name: item[name] for name in node.list_map_keys if name in item}
                identity = orjson.dumps(key, option=orjson.OPT_SORT_KEYS)
                if identity in seen:
                    faults.append(causes.duplicate(causes.field_path([*path, index]), key))
                seen.add(identity)
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                _check_lists(node.items, item, [*path, index], faults)
