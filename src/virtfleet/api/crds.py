"""CustomResourceDefinitions of our kinds, made from their records and views.

Types, `Required` and `OneOf` of the views become the structural schema that the API server enforces, and the strings
below classes and fields become what `kubectl explain` shows. Those strings are read from the source, so that they cost
the processes that only read objects nothing.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from virtfleet.api import names
from virtfleet.api.kinds import KINDS, KUBEVIRT, OwnKind
from virtfleet.api.meta import KubernetesObject, ObjectMeta
from virtfleet.api.quantity import PATTERN
from virtfleet.api.view import MapKey, OneOf, View, fields

Schema = dict[str, Any]

# Bounds of all that can be written, far above what anybody needs: the more parts an object has, the longer everybody
# who has a say in it takes.
MOST_ITEMS: Final = 256  # of a list, and keys of a map
MORE_ITEMS: Final = {
    "additionalVirtHandlers": 1024,
    "cpuSet": 4096,
    "generations": 4096,
    "interfaces": 1024,  # of a status: those of the VM, and what else its guest has
    "mediatedDevices": 1024,
    "nodeMediatedDeviceTypes": 1024,
    "patches": 1024,
    "pciHostDevices": 1024,
    "targetCPUSet": 4096,
    "usb": 1024,
    "values": 1024,
    "virtHandlerPools": 1024,
}
LONGEST_TEXT: Final = 64 * 1024
LONGEST_NUMBER: Final = 128
_PRESERVE: Final = {"type": "object", "maxProperties": MOST_ITEMS, "x-kubernetes-preserve-unknown-fields": True}
_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.labelSelector",
}


def definition(of: OwnKind) -> Schema:
    """The CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{of.plural}.{of.group}",
            "labels": {"operator.kubevirt.io" if of is KUBEVIRT else names.APP_LABEL: ""},
        },
        "spec": {
            "group": of.group,
            "scope": "Namespaced" if of.namespaced else "Cluster",
            "names": {
                "plural": of.plural,
                "singular": of.singular,
                "kind": of.kind,
                "listKind": f"{of.kind}List",
                "shortNames": list(of.short_names),
                **({"categories": ["all"]} if of.namespaced else {}),
            },
            "versions": [_version(of, version) for version in of.versions],
        },
    }


def _version(of: OwnKind, version: str) -> Schema:
    warning = f"{of.group}/{version} is now deprecated and will be removed in a future release."
    return {
        "name": version,
        "storage": version == of.versions[0],
        **({"deprecated": True, "deprecationWarning": warning} if version in of.deprecated else {}),
        "served": True,
        "schema": {"openAPIV3Schema": schema(of.view)},
        "additionalPrinterColumns": list(of.columns),
        "subresources": {**({"status": {}} if of.status else {}), **({"scale": _SCALE} if of.scaled else {})},
    }


def definitions() -> list[Schema]:
    """All CustomResourceDefinitions."""
    return [definition(kind) for kind in KINDS]


def schema(view: type[KubernetesObject]) -> Schema:
    """The structural schema of a kind."""
    root = _struct(view)
    properties = {**root["properties"], "metadata": {"type": "object"}}
    if "status" in properties:
        properties["status"] = {**properties["status"], "nullable": True}
    return {**root, "properties": properties}


@cache
def _struct(view: type[View]) -> Schema:
    if view is ObjectMeta:  # in templates: the API server checks the metadata of whole objects only
        notes = {"labels": _PRESERVE, "annotations": _PRESERVE}
        return {**_PRESERVE, "properties": notes, "nullable": True}
    properties: dict[str, Schema] = {}
    descriptions, hints = _descriptions(view), typing.get_type_hints(view, include_extras=True)
    for name, field in fields(view).items():
        properties[name] = entry = dict(_type(hints[field.attribute]))
        if (most := MORE_ITEMS.get(name)) and "maxItems" in entry:
            entry["maxItems"] = most
        if text := descriptions.get(field.attribute):
            entry["description"] = text
    result: Schema = {"description": inspect.getdoc(view), "type": "object"}
    if properties:
        result["properties"] = properties
    if required := sorted(name for name, field in fields(view).items() if field.required):
        result["required"] = required
    return result


def _type(hint: Any) -> Schema:
    """The schema of one field's type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is list:
        return {"type": "array", "maxItems": MOST_ITEMS, "items": _type(arguments[0])}
    if origin is dict:
        return {"type": "object", "maxProperties": MOST_ITEMS, "additionalProperties": _type(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, View):
        return _struct(hint)
    if hint is str:
        return {"type": "string", "maxLength": LONGEST_TEXT}
    return {"type": {int: "integer", bool: "boolean", float: "number"}[hint]}


def _annotated(inner: Any, marks: tuple[Any, ...]) -> Schema:
    if "raw" in marks:
        return _PRESERVE
    result = dict(_type(inner))
    for mark in marks:
        if isinstance(mark, OneOf):
            result["enum"] = list(mark.values)
        elif isinstance(mark, MapKey):
            result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [mark.name]}
        elif isinstance(mark, msgspec.Meta):
            result["pattern"] = PATTERN
    return result


def _union(arguments: tuple[Any, ...]) -> Schema:
    members = [a for a in arguments if a is not types.NoneType]
    if len(members) > 1:
        either = [{"type": "integer"}, {"type": "string"}]
        return {"anyOf": either, "maxLength": LONGEST_NUMBER, "x-kubernetes-int-or-string": True}
    inner = _type(members[0])
    # A text that may be null is marked so in the view; elsewhere None only stands for "not there".
    return {**inner, "nullable": True} if members[0] is str else inner


@cache
def _module_descriptions(module: str) -> dict[str, dict[str, str]]:
    """For every class of a module, the strings that stand below its fields."""
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts = classes[node.name] = {}
        for item, below in zip(node.body, node.body[1:], strict=False):
            match item, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(text)):
                    texts[name] = str(text)
    return classes


def _descriptions(view: type) -> dict[str, str]:
    bases = (base for base in reversed(view.__mro__) if issubclass(base, View) and base is not View)
    said = (_module_descriptions(base.__module__)[base.__name__] for base in bases)
    return {name: text for texts in said for name, text in texts.items()}
