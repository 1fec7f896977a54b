"""CustomResourceDefinitions: completion, checks, and the status that says whether the kind is served.

Kubernetes' controllers fill in that status a moment after the write; here it is worked out with the write itself, so
that a client that reads the answer already sees the kind Established.

Every field of a schema has a type outside of anyOf and the like, so that pruning and defaulting know what to do without
trying alternatives; patterns compile, and defaults are what the schema allows. Kubernetes asks for more of a schema.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jsonschema_rs

from virtfleet.api import conditions
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.metadata import dns_label_1035, subdomain
from virtfleet.local.apiserver.kinds.registry import Kinds, Rules
from virtfleet.local.apiserver.kinds.schema_validation import json_schema
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.tables import jsonpath

STORAGE = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
COLUMN_TYPES = ["boolean", "date", "integer", "number", "string"]
TYPES = ("array", "boolean", "integer", "number", "object", "string")
_TYPE_REQUIRED = {
    "root": "must not be empty at the root",
    "field": "must not be empty for specified object fields",
    "item": "must not be empty for specified array items",
}


def rules(kinds: Kinds) -> Rules:
    """Definitions are accepted as soon as they are right; two of one group may want the same names."""
    fixed = ("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind")
    return Rules(
        status={},
        finalizer=CLEANUP_FINALIZER,
        fixed=dict.fromkeys(fixed, "field is immutable"),
        complete=_complete,
        faults=partial(_faults, kinds),
        on_update=partial(_changes, kinds),
    )


def _complete(obj: Obj) -> None:
    """Names that follow from others, and the status."""
    names = obj.setdefault("spec", {}).setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    obj["status"] = _status(obj["spec"], obj.get("status", {}))


def _changes(kinds: Kinds, obj: Obj, _old: Obj, _subresource: str) -> Iterator[Cause]:
    """Versions stay in which there may be objects."""
    yield from _faults(kinds, obj)
    names = {version.get("name") for version in obj["spec"].get("versions", ())}
    for index, version in enumerate(obj["status"].get("storedVersions", ())):
        if version not in names:
            why = f"missing from spec.versions; {version} was previously a storage version, and must remain in "
            why += "spec.versions until a storage migration ensures no data remains persisted in it"
            yield causes.invalid(f"status.storedVersions[{index}]", version, why)


def _status(spec: Obj, was: Obj) -> Obj:
    """Accepted names, stored versions and conditions; nothing of this is the writer's to decide."""
    listed, stored = was.get("conditions", []), was.get("storedVersions", [])
    for kind, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        listed = conditions.put(listed, kind, "True", time.time(), reason=reason, message=message)
    storing = [v.get("name", "") for v in spec.get("versions", ()) if v.get("storage")]
    return {
        "conditions": listed,
        "acceptedNames": {"plural": "", "kind": "", **spec["names"]},
        "storedVersions": [*stored, *(name for name in storing if name not in stored)],
    }


def _faults(kinds: Kinds, obj: Obj) -> Iterator[Cause]:
    spec = obj["spec"]
    group, names, versions = spec.get("group", ""), spec["names"], spec.get("versions", [])
    if any(kind.resource.group == group for kind in kinds if not kind.custom):
        yield causes.forbidden("spec.group", "this group is the API server's own")
    if obj["metadata"].get("name") != f"{names.get('plural', '')}.{group}":
        why = 'must be spec.names.plural+"."+spec.group'
        yield causes.invalid("metadata.name", obj["metadata"].get("name"), why)
    if group and (why_not := subdomain(group)):
        yield causes.invalid("spec.group", group, why_not)
    elif "." not in group:
        yield causes.invalid("spec.group", group, "should be a domain with at least one dot")
    for field in ("plural", "singular", "kind", "listKind"):
        if not names.get(field):
            yield causes.required(f"spec.names.{field}")
        elif bad := dns_label_1035(names[field].lower()):
            yield causes.invalid(f"spec.names.{field}", names[field], bad)
    named = [version.get("name", "") for version in versions]
    if not versions:
        yield causes.required("spec.versions", "must have at least one version")
    elif len([v for v in versions if v.get("storage")]) != 1:
        yield causes.invalid("spec.versions", named, "must have exactly one version marked as storage version")
    if len(set(named)) != len(named):
        yield causes.invalid("spec.versions", named, "must contain unique version names")
    for index, version in enumerate(versions):
        yield from _version_faults(version, f"spec.versions[{index}]")
    if versions and (bad := dns_label_1035(named[0])):
        yield causes.invalid("spec.version", named[0], bad)
    if not obj["status"]["storedVersions"]:
        yield causes.invalid("status.storedVersions", [], "must have at least one stored version")
    schemas = [version.get("schema", {}).get("openAPIV3Schema") for version in versions]
    alike = all(schema == schemas[0] for schema in schemas)
    for index, schema in enumerate(schemas):
        field = f"spec.versions[{index}].schema.openAPIV3Schema"
        if schema is None:
            yield causes.required(field, "schemas are required")
        elif not alike:
            yield from schema_faults(schema, field)
        elif index == 0:  # a schema that all versions share is named as that of the definition
            yield from schema_faults(schema, "spec.validation.openAPIV3Schema")


def _version_faults(version: Obj, field: str) -> Iterator[Cause]:
    name, scale = version.get("name", ""), version.get("subresources", {}).get("scale")
    if bad := dns_label_1035(name):
        yield causes.invalid(f"{field}.name", name, bad)
    for index, column in enumerate(version.get("additionalPrinterColumns", ())):
        at = f"{field}.additionalPrinterColumns[{index}]"
        if column.get("type") not in COLUMN_TYPES:
            yield causes.invalid(f"{at}.type", column.get("type", ""), f"must be one of {','.join(COLUMN_TYPES)}")
        yield from _path_faults(column.get("jsonPath"), f"{at}.jsonPath")
    for index, selectable in enumerate(version.get("selectableFields", ())):
        yield from _path_faults(selectable.get("jsonPath"), f"{field}.selectableFields[{index}].jsonPath")
    for path, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")) if scale is not None else ():
        if not scale.get(path, "").startswith(f"{root}."):
            why = f"should be a json path under {root}"
            yield causes.invalid(f"{field}.subresources.scale.{path}", scale.get(path, ""), why)


def _path_faults(path: Any, field: str) -> Iterator[Cause]:
    if not path:
        yield causes.required(field)
        return
    try:
        jsonpath.steps(path)
    except jsonpath.JsonPathError as error:
        yield causes.invalid(field, path, f"is an invalid path: {error}")


def schema_faults(schema: dict[str, Any], field: str, place: str = "root") -> Iterator[Cause]:
    """What keeps a schema, or the part of it that is at a `place` of some sort, from being used."""
    if "$ref" in schema:
        yield causes.forbidden(f"{field}.$ref", "$ref is not supported")
        return
    yield from _type_faults(schema, field, place)
    yield from _value_faults(schema, field)
    for name, part in schema.get("properties", {}).items():
        if not (place == "root" and name == "metadata"):
            yield from schema_faults(part, f"{field}.properties[{name}]", "field")
    for name, of in (("items", "item"), ("additionalProperties", "field")):
        if isinstance(schema.get(name), dict):
            yield from schema_faults(schema[name], f"{field}.{name}", of)


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
