"""The built-in kinds: Kubernetes' own facts about them (builtin_schemas.json), with our notes on top.

The schemas say names and types. What Kubernetes defines in code instead (defaults, allowed values, what this server
does not do: `not`) and one line of documentation for the fields people meet most are in builtin_notes.json. What a kind
does beyond its schema is in the rules modules, how it is printed in the tables room.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from typing import Any

import orjson

from virtfleet.kube.resource import Resource
from virtfleet.local.apiserver.kinds import (
    left_out,
    rules_crds,
    rules_objects,
    rules_pods,
    rules_workloads,
)
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds, Rules
from virtfleet.local.apiserver.kinds.rules_services import Services
from virtfleet.local.apiserver.kinds.schema import SchemaNode, StructuralSchema, fill_node
from virtfleet.local.apiserver.kinds.schema_validation import Validator, json_schema
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.tables.table import builtin_columns

SCALE = {"specReplicas": "spec.replicas", "statusReplicas": "status.replicas", "labelSelector": "spec.selector"}
SERVICE_NETWORK = "10.96.0.0/16"
_REFERENCE = re.compile(r'"\$ref":"([^"]+)"')
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class Facts:
    """The data files, read once."""

    def __init__(self) -> None:
        files = resources.files(__package__)
        facts = orjson.loads(files.joinpath("builtin_schemas.json").read_bytes())
        self.groups: list[str] = facts["groups"]  # in the order of discovery
        self.resources: list[dict[str, Any]] = facts["resources"]
        self.types: dict[str, dict[str, Any]] = facts["types"]
        self._nodes: dict[str, SchemaNode] = {}
        for name, note in orjson.loads(files.joinpath("builtin_notes.json").read_bytes()).items():
            self._annotate(self.types[name], note)

    def _annotate(self, schema: dict[str, Any], note: dict[str, Any]) -> None:
        if "doc" in note:
            schema["description"] = note["doc"]
        if "required" in note:
            schema["required"] = list({*schema.get("required", ()), *note["required"]})
        for name, facts in note.get("fields", {}).items():
            described = schema["properties"][name]
            items = described.get("items", {}) | facts.get("items", {})
            described |= {"description" if key == "doc" else key: v for key, v in facts.items()}
            if items:
                described["items"] = items

    def node(self, name: str) -> SchemaNode:
        """The compiled type; shared by all kinds that use it."""
        if name not in self._nodes:
            package, _, struct = name.rpartition(".")
            go_type = "" if "properties" not in self.types[name] else f"{package.rpartition('.')[2]}.{struct}"
            self._nodes[name] = SchemaNode(typed=True, go_type=go_type)
            fill_node(self._nodes[name], self.types[name], self.node)
        return self._nodes[name]

    def reach(self, name: str) -> set[str]:
        """The types that a type consists of, itself included."""
        reached: set[str] = set()
        queue = [name]
        while queue:
            if (name := queue.pop()) not in reached:
                reached.add(name)
                queue += _REFERENCE.findall(orjson.dumps(self.types[name]).decode())
        return reached

    def json_schema(self, name: str) -> dict[str, Any]:
        """What objects are validated with."""
        definitions = {part: json_schema(self.types[part]) for part in self.reach(name)}
        return {**definitions[name], "definitions": definitions}

    def openapi(self, name: str) -> dict[str, Any]:
        """What is published."""
        return {part: _openapi(self.types[part]) for part in self.reach(name)}


@cache
def facts() -> Facts:
    """The facts, read at the first call."""
    return Facts()


@cache
def schema_of(resource: Resource, type_name: str) -> StructuralSchema:
    """The schema of a built-in kind, the same for every server of a process."""
    return StructuralSchema(
        resource,
        make_root=partial(facts().node, type_name),
        validator=Validator(partial(facts().json_schema, type_name), typed=True),
        openapi=partial(facts().openapi, type_name),
    )


def register(kinds: Kinds, stored: Store, *, services: str = SERVICE_NETWORK) -> None:
    """Add every built-in kind. Rules look other objects up in `stored`; `services` is the range of cluster IPs."""
    rules = {
        rules_crds.STORAGE: rules_crds.rules(kinds),
        **rules_objects.rules(stored),
        **rules_pods.rules(stored),
        **Services(stored, ipaddress.IPv4Network(services)).rules(),
        **rules_workloads.RULES,
    }
    for entry in facts().resources:
        if "/" not in entry["name"]:
            kinds.add(_kind(entry, _subresources(entry), rules))


def _subresources(kind: dict[str, Any]) -> list[dict[str, Any]]:
    group, plural = kind["groupVersion"].rpartition("/")[0], kind["name"]
    of_kind = [
        {**entry, "name": entry["name"].removeprefix(f"{plural}/")}
        for entry in facts().resources
        if entry["groupVersion"] == kind["groupVersion"] and entry["name"].startswith(f"{plural}/")
    ]
    return [entry for entry in of_kind if left_out.refusal(group, plural, entry["name"]) is None]


def _kind(entry: dict[str, Any], subresources: list[dict[str, Any]], rules: Mapping[str, Rules]) -> Kind:
    group, _, version = entry["groupVersion"].rpartition("/")
    resource = Resource(group, version, entry["name"], entry["kind"], entry["namespaced"])
    return Kind(
        resource,
        singular=entry["singularName"],
        list_kind=f"{entry['kind']}List",
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        verbs=frozenset(entry["verbs"]),
        subresources={sub["name"]: frozenset(sub["verbs"]) for sub in subresources},
        subresource_kinds={
            sub["name"]: (sub.get("group", group), sub.get("version", version), sub["kind"])
            for sub in subresources
            if sub["kind"] != entry["kind"]
        },
        schema=schema_of(resource, entry["type"]),
        columns=builtin_columns().get(f"{group}/{entry['name']}", ()),
        rules=rules.get(f"{group}/{entry['name']}", Rules()),
        scale=SCALE if any(sub["name"] == "scale" for sub in subresources) else {},
    )


def _openapi(schema: dict[str, Any]) -> dict[str, Any]:
    """The published form: references point into the document, and a described reference hides in an allOf."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            reference = {"$ref": f"#/components/schemas/{value}"}
            result |= reference if len(schema) == 1 else {"allOf": [reference]}
        elif key == "properties":
            result[key] = {name: _openapi(part) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            result[key] = _openapi(value)
        else:
            result[key] = value
    return result
