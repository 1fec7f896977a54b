"""CustomResourceDefinitions: what is accepted, and what the status says of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import rules_crds
from virtfleet.local.apiserver.kinds.crds import custom_kind
from virtfleet.local.apiserver.kinds.registry import Kinds


def definition(plural: str = "things", kind: str = "Thing", **names: Any) -> Obj:
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **names},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }


def conditions(crd: Obj) -> dict[str, str]:
    return {c["type"]: f"{c['status']} {c['reason']}" for c in crd["status"]["conditions"]}


def test_an_accepted_definition_is_established_at_once() -> None:
    crd = definition()
    rules = rules_crds.rules(Kinds())
    rules.prepare_create(crd)
    assert list(rules.faults(crd)) == []
    assert conditions(crd) == {"NamesAccepted": "True NoConflicts", "Established": "True InitialNamesAccepted"}
    assert crd["status"]["acceptedNames"] == {
        "plural": "things",
        "singular": "thing",
        "kind": "Thing",
        "listKind": "ThingList",
    }
    assert crd["status"]["storedVersions"] == ["v1"]
    assert crd["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]


def test_a_new_storage_version_joins_the_stored_ones() -> None:
    rules = rules_crds.rules(Kinds())
    old = definition()
    rules.prepare_create(old)
    new = orjson.loads(orjson.dumps(old))
    new["spec"]["versions"][0]["storage"] = False
    new["spec"]["versions"].append({**new["spec"]["versions"][0], "name": "v2", "storage": True})
    rules.prepare_update(new, old, "")
    assert new["status"]["storedVersions"] == ["v1", "v2"]
    assert rules.update_faults(new, old, "") == []
    gone = orjson.loads(orjson.dumps(new))
    del gone["spec"]["versions"][0]
    rules.prepare_update(gone, new, "")
    assert "v1 was previously a storage version" in rules.update_faults(gone, new, "")[0].message


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"group": "nodots"}, 'spec.group: Invalid value: "nodots": should be a domain with at least one dot'),
        ({"versions": []}, "spec.versions: Required value: must have at least one version"),
        (
            {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}}]},
            'spec.versions: Invalid value: ["v1"]: must have exactly one version marked as storage version',
        ),
        (
            {"versions": [{"name": "v1", "storage": True}]},
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
    ],
)
def test_faulty_definitions_are_refused(change: Obj, fault: str) -> None:
    rules = rules_crds.rules(Kinds())
    crd = definition()
    crd["spec"] |= change
    rules.prepare_create(crd)
    assert fault in [f"{c.field}: {c.message}" for c in rules.faults(crd)]


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({}, "s.type: Required value: must not be empty at the root"),
        ({"type": "string"}, 's.type: Invalid value: "string": must be object at the root'),
        (
            {"type": "object", "properties": {"a": {}}},
            "s.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            "s.properties[a].items: Required value: must be specified",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
            "s.properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}},
            's.properties[a].default: Invalid value: "x": must validate: "x" is not of type "integer"',
        ),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(schema: dict[str, Any], fault: str) -> None:
    assert fault in [f"{c.field}: {c.message}" for c in rules_crds.schema_faults(schema, "s")]


def test_a_pattern_must_compile() -> None:
    broken = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    faults = rules_crds.schema_faults(broken, "s")
    assert [f.field for f in faults] == ["s.properties[a].pattern"]


def test_fields_may_be_free_where_they_say_so() -> None:
    free = {
        "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "any": {"x-kubernetes-preserve-unknown-fields": True},
    }
    assert list(rules_crds.schema_faults({"type": "object", "properties": free}, "s")) == []


def test_a_kind_has_what_its_version_says() -> None:
    crd = definition(shortNames=["th"], categories=["all"], singular="thing", listKind="ThingList")
    version = crd["spec"]["versions"][0] | {
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.n",
                "statusReplicasPath": ".status.n",
                "labelSelectorPath": ".status.s",
            },
        },
        "selectableFields": [{"jsonPath": ".spec.color"}],
    }
    kind = custom_kind(crd["spec"], version)
    assert set(kind.subresources) == {"status", "scale"}
    assert kind.scale == {"specReplicas": "spec.n", "statusReplicas": "status.n", "labelSelector": "status.s"}
    assert kind.rules.fields({"spec": {"color": "red"}}) == {"spec.color": "red"}
    assert kind.rules.fields({}) == {"spec.color": ""}
    assert "create" not in custom_kind(crd["spec"], version, ending=True).verbs
