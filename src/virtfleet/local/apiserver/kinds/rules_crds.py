"""CustomResourceDefinitions: completion, checks, and the status that says whether the kind is served.

Kubernetes' controllers fill in that status a moment after the write; here it is worked out with the write itself, so
that a client that reads the answer already sees the kind Established.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import crd_schema
from virtfleet.local.apiserver.kinds.metadata import dns_label_1035, now, subdomain
from virtfleet.local.apiserver.kinds.registry import Cause, Context, Kinds, Rules, Stored
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.tables import jsonpath

STORAGE = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
COLUMN_TYPES = ["boolean", "date", "integer", "number", "string"]
# (field, reason of the conflict, whether it is a name of resources or of kinds)
_NAMES = (
    ("plural", "PluralConflict", True),
    ("singular", "SingularConflict", True),
    ("kind", "KindConflict", False),
    ("listKind", "ListKindConflict", False),
)


class CrdRules(Rules):
    exclusive = True  # a name is free only as long as nobody else takes it

    def __init__(self, stored: Stored, kinds: Kinds) -> None:
        self._stored = stored
        self._kinds = kinds

    def prepare_create(self, obj: Obj, ctx: Context) -> None:
        _complete(obj)
        finalizers = obj["metadata"].get("finalizers", [])
        if CLEANUP_FINALIZER not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, CLEANUP_FINALIZER]
        obj["status"] = self._status(obj, {})

    def prepare_update(self, obj: Obj, old: Obj, ctx: Context) -> None:
        _complete(obj)
        obj["status"] = self._status(obj, obj.get("status", {}))

    def faults(self, obj: Obj) -> Iterator[Cause]:
        return _faults(obj)

    def validate_update(self, obj: Obj, old: Obj, ctx: Context) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        spec, was = obj["spec"], old["spec"]
        for path, new, before in (
            ("spec.group", spec.get("group"), was.get("group")),
            ("spec.scope", spec.get("scope"), was.get("scope")),
            ("spec.names.plural", spec["names"].get("plural"), was["names"].get("plural")),
            ("spec.names.kind", spec["names"].get("kind"), was["names"].get("kind")),
        ):
            if new != before and is_established(old):
                found.append(causes.invalid(path, new, "field is immutable"))
        names = {version.get("name") for version in spec.get("versions", ())}
        for index, version in enumerate(obj["status"].get("storedVersions", ())):
            if version not in names:
                why = f"missing from spec.versions; {version} was previously a storage version, and must remain in "
                why += "spec.versions until a storage migration ensures no data remains persisted in it"
                found.append(causes.invalid(f"status.storedVersions[{index}]", version, why))
        return found

    def _status(self, obj: Obj, was: Obj) -> Obj:
        """Accepted names, stored versions and conditions; nothing of this is the writer's to decide."""
        spec = obj["spec"]
        accepted, conflict = self._accept(obj, was.get("acceptedNames", {}))
        conditions = {condition["type"]: condition for condition in was.get("conditions", ())}
        names = ("False", *conflict) if conflict else ("True", "NoConflicts", "no conflicts found")
        established = conditions.get("Established", {}).get("status") == "True"
        if not conflict or established:
            serving = ("True", "InitialNamesAccepted", "the initial names have been accepted")
        else:
            serving = ("False", "NotAccepted", "not all names are accepted")
        for type_, state in (("NamesAccepted", names), ("Established", serving)):
            conditions[type_] = _condition(type_, *state, conditions.get(type_))
        storing = [v.get("name", "") for v in spec.get("versions", ()) if v.get("storage")]
        stored = was.get("storedVersions", [])
        return {
            "conditions": list(conditions.values()),
            "acceptedNames": accepted,
            "storedVersions": [*stored, *(name for name in storing if name not in stored)],
        }

    def _accept(self, obj: Obj, was: Obj) -> tuple[Obj, tuple[str, str] | None]:
        """The names that are this definition's own, and what is wrong with those it cannot have."""
        wanted = obj["spec"].get("names", {})
        resources, kinds = self._taken(obj)
        accepted, conflict = dict(was), None
        for field, reason, of_resources in _NAMES:
            name = wanted.get(field, "")
            if name != was.get(field) and name in (resources if of_resources else kinds):
                conflict = (reason, f"{causes.quoted(name)} is already in use")
            else:
                accepted[field] = name
        shorts = [name for name in wanted.get("shortNames", ()) if name in resources]
        if shorts:
            conflict = ("ShortNamesConflict", ", ".join(f"{causes.quoted(name)} is already in use" for name in shorts))
        for field in ("shortNames", "categories"):
            if field in wanted and not (shorts and field == "shortNames"):
                accepted[field] = wanted[field]
        accepted.setdefault("plural", "")
        accepted.setdefault("kind", "")
        return accepted, conflict

    def _taken(self, obj: Obj) -> tuple[set[str], set[str]]:
        """Names of resources and of kinds that others in the group have."""
        resources: set[str] = set()
        kinds: set[str] = set()
        group = obj["spec"].get("group")
        for record in self._stored.scan(STORAGE):
            other = orjson.loads(record.data)
            if other["spec"]["group"] == group and other["metadata"]["name"] != obj["metadata"].get("name"):
                names = other.get("status", {}).get("acceptedNames", {})
                resources |= {names.get("plural", ""), names.get("singular", ""), *names.get("shortNames", ())}
                kinds |= {names.get("kind", ""), names.get("listKind", "")}
        for kind in self._kinds:
            if kind.resource.group == group and not kind.custom:
                resources |= {kind.resource.plural, kind.singular, *kind.short_names}
                kinds |= {kind.resource.kind, kind.list_kind}
        return resources - {""}, kinds - {""}


def is_established(crd: Obj) -> bool:
    conditions = crd.get("status", {}).get("conditions", ())
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _complete(obj: Obj) -> None:
    names = obj.setdefault("spec", {}).setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")


def _condition(type_: str, status: str, reason: str, message: str, was: Obj | None) -> Obj:
    changed = now() if was is None or was["status"] != status else was.get("lastTransitionTime", now())
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": changed}


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
