"""Structural schemas: what a kind's objects look like, and the two things done with that on every write.

A schema is compiled once into a tree of `SchemaNode`s. `shape` brings an object into the schema's shape: unknown fields
go, and are reported; what is absent is filled in from defaults. `validate` (schema_validation.py) finds faults. There
are two dialects. Custom kinds follow their CRD. Built-in kinds, and the metadata of all kinds, are `typed`: Kubernetes
decodes them into Go structs, so a value of a wrong type is a bad request rather than an invalid object, null means
absent, and quantities come out in canonical form.
"""

from __future__ import annotations

import binascii
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import orjson

from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.schema_validation import Validator
from virtfleet.local.apiserver.objects import causes, refusals
from virtfleet.local.apiserver.objects.causes import Cause, field_path

Path = tuple[()] | tuple["Path", str | int]  # the way to the parent, and the last step; most are never looked at
Class = type  # inside SchemaNode, `type` is a field
EMBEDDED_FIELDS = ("apiVersion", "kind", "metadata")


@dataclass(slots=True)
class SchemaNode:
    """One place in a schema. `fields` and `defaults` are shared between uses of a type and filled after creation."""

    type: str = ""  # object array string integer number boolean quantity int-or-string byte; "" for anything
    typed: bool = False
    go_type: str = ""  # as messages about wrong types name it
    fields: dict[str, SchemaNode] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    items: SchemaNode | None = None
    values: SchemaNode | None = None  # of a map
    open: bool = False  # unknown fields are kept
    embedded: bool = False  # a whole object of some kind
    nullable: bool = False
    choice: bool = False  # one of some values
    list_type: str = ""
    list_map_keys: tuple[str, ...] = ()
    map_type: str = ""
    most: int = sys.maxsize  # items or keys
    patch_strategy: str | None = None
    merge_key: str | None = None
    # Values of these types need no look: of this node, and of its fields. A choice may be "", which means absent.
    simple: frozenset[Class] = frozenset()
    plain: dict[str, Class] = field(default_factory=dict)


_SIMPLE: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


def compile_node(
    schema: dict[str, Any], *, typed: bool, resolve: Callable[[str], SchemaNode] | None = None
) -> SchemaNode:
    """The node of a schema; `resolve` finds the types that a $ref names."""
    node = SchemaNode(typed=typed)
    if "$ref" in schema and resolve:
        node = resolve(schema["$ref"])
        if len(schema) > 1:
            node = replace(node)
            _read_use(node, schema)
        return node
    fill_node(node, schema, resolve)
    return node


def fill_node(node: SchemaNode, schema: dict[str, Any], resolve: Callable[[str], SchemaNode] | None = None) -> None:
    """Fill in a node made beforehand, so that a type may contain itself."""

    def compiled(part: dict[str, Any]) -> SchemaNode:
        return compile_node(part, typed=node.typed, resolve=resolve)

    node.type = _type_of(schema)
    node.most = schema.get("maxItems", schema.get("maxProperties", sys.maxsize))
    _read_use(node, schema)
    for name, part in schema.get("properties", {}).items():
        node.fields[name] = child = compiled(part)
        if child.simple:
            node.plain[name] = next(iter(child.simple))
        if "default" in part:
            node.defaults[name] = part["default"]
    if isinstance(schema.get("items"), dict):
        node.items = compiled(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        node.values = compiled(schema["additionalProperties"])
    node.go_type = node.go_type or _go_type(schema, node)
    node.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    node.open = bool(schema.get("x-kubernetes-preserve-unknown-fields")) or schema.get("additionalProperties") is True
    if node.typed and not node.fields and not node.values:
        node.open = True  # RawExtension, FieldsV1, JSON: whatever the writer puts there
    if node.embedded:
        node.fields.setdefault("metadata", SchemaNode(type="object", open=True))


def _read_use(node: SchemaNode, schema: dict[str, Any]) -> None:
    """What a schema says about this use of a type rather than about the type."""
    node.nullable = bool(schema.get("nullable"))
    node.choice = "enum" in schema
    node.simple = frozenset({_SIMPLE[node.type]} if node.type in _SIMPLE and not node.choice else ())
    node.list_type = schema.get("x-kubernetes-list-type", "")
    node.list_map_keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    node.map_type = schema.get("x-kubernetes-map-type", node.map_type)
    node.patch_strategy = schema.get("x-kubernetes-patch-strategy")
    node.merge_key = schema.get("x-kubernetes-patch-merge-key")


def _type_of(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return "int-or-string"
    if "type" not in schema and schema.get("oneOf") == [{"type": "string"}, {"type": "number"}]:
        return "quantity"
    if schema.get("format") == "byte":
        return "byte"
    return str(schema.get("type", ""))


def _go_type(schema: dict[str, Any], node: SchemaNode) -> str:
    """The Go type behind a field, as messages about wrong types name it."""
    if node.type == "integer":
        return str(schema.get("format", "int64"))
    if node.items:
        return f"[]{node.items.go_type}"
    if node.values:
        return f"map[string]{node.values.go_type}"
    names = {"boolean": "bool", "number": "float64", "quantity": "resource.Quantity"}
    return node.type if node.type in ("string", "byte") else names.get(node.type, "map[string]interface {}")


@dataclass(frozen=True)
class StructuralSchema:
    """A schema as the operations use it. Its parts are made when first needed."""

    resource: Resource
    make_root: Callable[[], SchemaNode]
    validator: Validator
    openapi: Callable[[], dict[str, Any]]  # v3 components, by name: the kind's own schema and all that it refers to

    @cached_property
    def root(self) -> SchemaNode:
        """What objects of the kind look like."""
        return self.make_root()

    def shape(self, obj: Obj, stored: Obj | None = None) -> list[str]:
        """Remove, in place, fields that the schema does not know, and fill in what it has defaults for; returns the
        paths of what was removed. The first step of every write. What is as in `stored` has been shaped already.

        Raises ApiError (BadRequest) for what Kubernetes could not even decode: wrong types in built-in kinds and in
        the metadata of any kind; Invalid for a list or map that is larger than the schema allows, before anybody has
        to look at all of it.
        """
        unknown: list[str] = []
        name = (obj.get("metadata") or {}).get("name", "")
        shaped: Obj = {}
        if stored and self.root.typed:  # the schema of a custom kind may have changed since
            shaped = {key: obj.pop(key) for key, value in stored.items() if obj.get(key) == value}
        try:
            _shape_object(self.root, obj, self.root, (), unknown)
        except _DecodeError as error:
            raise refusals.undecodable(self.resource, str(error)) from None
        except _TooManyError as error:
            raise refusals.invalid(self.resource, name, [error.args[0]]) from None
        obj |= shaped
        if stored and self.root.typed and "spec" in stored:
            obj.setdefault("spec", {})  # a struct is never absent
        return unknown

    def validate(self, obj: Obj) -> list[Cause]:
        """The faults of an object that has been shaped."""
        return self.validator.faults(obj, self.root)

    def merge_key(self, path: tuple[str, ...]) -> tuple[str | None, str | None]:
        """For strategic merge: (patchStrategy, patchMergeKey) of the field at `path` (list indexes left out)."""
        node: SchemaNode | None = self.root
        for part in path:
            while node and node.items:
                node = node.items
            node = (node.fields.get(part) or node.values) if node else None
        return (node.patch_strategy, node.merge_key) if node else (None, None)


class _TooManyError(Exception):
    """A list or map with more in it than the schema allows, by its cause. Nothing more is looked at."""


class _DecodeError(Exception):
    """A value that Go could not decode."""


_SCALARS: dict[str, tuple[type, ...]] = {name: (fits,) for name, fits in _SIMPLE.items()}
_SCALARS |= {"byte": (str,), "number": (int, float), "quantity": (str, int, float), "int-or-string": (str, int)}
_ZEROS: dict[str, Callable[[], Any]] = {**_SIMPLE, "object": dict}


def _zero(node: SchemaNode) -> Any:
    """What Go makes of a null in a list or map."""
    return _ZEROS[node.type]() if node.typed and node.type in _ZEROS else None


def _shape(node: SchemaNode, value: Any, owner: SchemaNode, path: Path, unknown: list[str]) -> Any:
    """The value in the schema's shape. `owner` is the struct that the field at `path` is in."""
    if isinstance(value, dict):
        if node.typed and node.type not in ("object", ""):
            raise _wrong_type(node, value, owner, path)
        _shape_object(node, value, owner, path, unknown)
    elif isinstance(value, list):
        if node.typed and node.type not in ("array", ""):
            raise _wrong_type(node, value, owner, path)
        if len(value) > node.most:
            raise _TooManyError(causes.too_many(_text(path), len(value), node.most))
        if node.items and not node.items.simple.issuperset(map(type, value)):
            for index, item in enumerate(value):
                item = _zero(node.items) if item is None else item
                value[index] = _shape(node.items, item, owner, (path, index), unknown)
    elif node.typed and node.type:
        return _decode(node, value, owner, path)
    return value


def _shape_object(node: SchemaNode, obj: Obj, owner: SchemaNode, path: Path, unknown: list[str]) -> None:
    """This is where a write spends its time, so it goes into a value only where there can be something to do."""
    if len(obj) > node.most:
        raise _TooManyError(causes.too_many(_text(path), len(obj), node.most))
    if node.values and node.values.simple.issuperset(map(type, obj.values())):
        return
    fields, plain = node.fields, node.plain
    struct = node if fields else owner
    gone: list[str] = []
    for key, value in obj.items():
        if plain.get(key) is type(value):
            continue
        child = fields.get(key) or node.values
        if child is None:
            if not (node.open or (node.embedded and key in EMBEDDED_FIELDS)):
                gone.append(key)
                unknown.append(_text((path, key)))
            continue
        if value is None and child is node.values:
            value = _zero(child)
        obj[key] = value = _shape(child, value, struct, (path, key), unknown)
        if not value and _is_absent(child, value):
            gone.append(key)
    for key in gone:
        del obj[key]
    for name, default in node.defaults.items():
        if obj.get(name) is None and not (name in obj and fields[name].nullable):
            if isinstance(default, dict | list):
                default = _shape(fields[name], orjson.loads(orjson.dumps(default)), struct, (path, name), unknown)
            obj[name] = default


def _is_absent(node: SchemaNode, value: Any) -> bool:
    """What Go leaves out when it encodes: nulls, empty maps and lists, and choices that were not made."""
    if value is None:
        return not node.nullable
    return node.typed and (
        (value == "" and node.choice) or (value == [] and node.type == "array") or (value == {} and bool(node.values))
    )


def _decode(node: SchemaNode, value: Any, owner: SchemaNode, path: Path) -> Any:
    """A typed scalar as Kubernetes keeps it."""
    if value is None:
        return None
    fits = isinstance(value, _SCALARS.get(node.type, ()))
    if not fits or (isinstance(value, bool) and node.type != "boolean"):
        raise _wrong_type(node, value, owner, path)
    if node.type == "byte":
        try:
            binascii.a2b_base64(value, strict_mode=True)
        except ValueError as error:
            raise _DecodeError(f"illegal base64 data: {error}") from None
    return _canonical(value) if node.type == "quantity" else value


@lru_cache(4096)
def _canonical(quantity: str | int | float) -> str:
    try:
        return str(Quantity.parse(quantity))
    except QuantityError as error:
        raise _DecodeError(str(error)) from None


def _wrong_type(node: SchemaNode, value: Any, owner: SchemaNode, path: Path) -> _DecodeError:
    """In the words of Go's JSON package: the innermost struct, and the whole path without indexes."""
    given = {bool: "bool", str: "string", dict: "object", list: "array"}.get(type(value), "number")
    struct = owner.go_type.rpartition(".")[2]
    place = ".".join([struct, *(part for part in _parts(path) if isinstance(part, str))])
    return _DecodeError(f"json: cannot unmarshal {given} into Go struct field {place} of type {node.go_type}")


def _parts(path: Path) -> list[str | int]:
    parts: list[str | int] = []
    while path:
        path, part = path
        parts.append(part)
    return parts[::-1]


def _text(path: Path) -> str:
    return field_path(_parts(path))
