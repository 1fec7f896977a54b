"""CustomResourceDefinitions: completion, checks, and the status that says whether the kind is served.

Kubernetes' controllers fill in that status a moment after the write; here it is worked out with the write itself, so
that a client that reads the answer already sees the kind Established.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from virtfleet.api import conditions
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import crd_schema
from virtfleet.local.apiserver.kinds.metadata import dns_label_1035, subdomain
from virtfleet.local.apiserver.kinds.registry import Kinds, Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.tables import jsonpath

STORAGE = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
COLUMN_TYPES = ["boolean", "date", "integer", "number", "string"]


class CrdRules(Rules):
    """Definitions are accepted as soon as they are right; two of one group may want the same names."""

    initial_status: Mapping[str, Any] = {}
    finalizer = CLEANUP_FINALIZER
    fixed: Mapping[str, str] = dict.fromkeys(
        ("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind"), "field is immutable"
    )

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def complete(self, obj: Obj) -> None:
        """Names that follow from others, and the status."""
        names = obj.setdefault("spec", {}).setdefault("names", {})
        if kind := names.get("kind"):
            names.setdefault("singular", kind.lower())
            names.setdefault("listKind", f"{kind}List")
        obj["status"] = _status(obj["spec"], obj.get("status", {}))

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with a definition."""
        group = obj["spec"].get("group")
        if any(kind.resource.group == group for kind in self._kinds if not kind.custom):
            yield causes.forbidden("spec.group", "this group is the API server's own")
        yield from _faults(obj)

    def update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """Versions stay in which there may be objects."""
        faults, spec = super().update_faults(obj, old, subresource), obj["spec"]
        names = {version.get("name") for version in spec.get("versions", ())}
        for index, version in enumerate(obj["status"].get("storedVersions", ())):
            if version not in names:
                why = f"missing from spec.versions; {version} was previously a storage version, and must remain in "
                why += "spec.versions until a storage migration ensures no data remains persisted in it"
                faults.append(causes.invalid(f"status.storedVersions[{index}]", version, why))
        return faults


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


def _faults(obj: Obj) -> Iterator[Cause]:
    spec = obj["spec"]
    group, names, versions = spec.get("group", ""), spec["names"], spec.get("versions", [])
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
    if names.get("kind") == names.get("listKind"):
        yield causes.invalid("spec.names.listKind", names.get("listKind"), "kind and listKind may not be the same")
    if not versions:
        yield causes.required("spec.versions", "must have at least one version")
    elif len([v for v in versions if v.get("storage")]) != 1:
        why = "must have exactly one version marked as storage version"
        yield causes.invalid("spec.versions", [v.get("name") for v in versions], why)
    if len({v.get("name") for v in versions}) != len(versions):
        why = "must contain unique version names"
        yield causes.invalid("spec.versions", [v.get("name") for v in versions], why)
    for index, version in enumerate(versions):
        yield from _version_faults(version, f"spec.versions[{index}]")
    if versions and (bad := dns_label_1035(versions[0].get("name", ""))):
        yield causes.invalid("spec.version", versions[0].get("name", ""), bad)
    if not obj["status"]["storedVersions"]:
        yield causes.invalid("status.storedVersions", [], "must have at least one stored version")
    yield from _schema_faults(versions)


def _schema_faults(versions: list[Obj]) -> Iterator[Cause]:
    """A schema that all versions share is named as that of the definition."""
    schemas = [version.get("schema", {}).get("openAPIV3Schema") for version in versions]
    fields = [f"spec.versions[{index}].schema.openAPIV3Schema" for index in range(len(versions))]
    yield from (causes.required(f, "schemas are required") for f, s in zip(fields, schemas, strict=True) if s is None)
    if all(schema == schemas[0] for schema in schemas):
        fields = ["spec.validation.openAPIV3Schema"]
    for field, schema in zip(fields, schemas, strict=False):
        if schema is not None:
            yield from crd_schema.faults(schema, field)


def _version_faults(version: Obj, field: str) -> Iterator[Cause]:
    if bad := dns_label_1035(version.get("name", "")):
        yield causes.invalid(f"{field}.name", version.get("name", ""), bad)
    for index, column in enumerate(version.get("additionalPrinterColumns", ())):
        at = f"{field}.additionalPrinterColumns[{index}]"
        if column.get("type") not in COLUMN_TYPES:
            yield causes.invalid(f"{at}.type", column.get("type", ""), f"must be one of {','.join(COLUMN_TYPES)}")
        yield from _path_faults(column.get("jsonPath"), f"{at}.jsonPath")
    for index, selectable in enumerate(version.get("selectableFields", ())):
        yield from _path_faults(selectable.get("jsonPath"), f"{field}.selectableFields[{index}].jsonPath")
    scale = version.get("subresources", {}).get("scale")
    if scale is not None:
        for name, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
            if not scale.get(name, "").startswith(root):
                why = f"should be a json path under {root[:-1]}"
                yield causes.invalid(f"{field}.subresources.scale.{name}", scale.get(name, ""), why)


def _path_faults(path: Any, field: str) -> Iterator[Cause]:
    if not path:
        yield causes.required(field)
        return
    try:
        jsonpath.steps(path)
    except jsonpath.JsonPathError as error:
        yield causes.invalid(field, path, f"is an invalid path: {error}")
