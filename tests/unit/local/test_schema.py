"""Structural schemas: pruning, defaults, validation in Kubernetes' words."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, Obj, Resource
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import custom_schema
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.kinds.schema import StructuralSchema

THINGS = Resource("example.com", "v1", "things", "Thing")
NAMES = st.sampled_from(["a", "b", "c", "d"])


def schema_of(spec: dict[str, Any]) -> StructuralSchema:
    return custom_schema(THINGS, {"type": "object", "properties": {"spec": spec}})


def pods() -> StructuralSchema:
    kinds = Kinds()
    builtin.register(kinds, Mock())
    kind = kinds.find("", "v1", "pods")
    assert kind and kind.schema
    return kind.schema


def messages(schema: StructuralSchema, obj: Obj) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in schema.validate(obj)]


def copy(obj: Any) -> Any:
    return orjson.loads(orjson.dumps(obj))


SCALARS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{"type": "string"}, {"type": "string", "default": "x"}, {"type": "integer"}, {"type": "integer", "default": 1}]
)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    SCALARS,
    lambda inner: (
        st.dictionaries(NAMES, inner, max_size=3).map(lambda p: {"type": "object", "properties": p})
        | inner.map(lambda i: {"type": "array", "items": i})
        | inner.map(lambda i: {"type": "object", "additionalProperties": i})
        | st.just({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
        | st.just({"type": "object", "properties": {}, "default": {}})
    ),
    max_leaves=12,
)
VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text("xy", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def without_defaults(schema: Any) -> Any:
    """The schema, which then only prunes."""
    if not isinstance(schema, dict):
        return schema
    return {key: without_defaults(part) for key, part in schema.items() if key != "default"}


def without_nulls(value: Any) -> Any:
    """The value without what goes silently, because a field that may not be null is absent then."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


@given(SCHEMAS, VALUES)
def test_what_has_been_shaped_stays_as_it_is(schema: dict[str, Any], value: Any) -> None:
    obj = {"spec": value}
    structural = schema_of(schema)
    structural.shape(obj)
    before = copy(obj)
    assert structural.shape(obj) == []
    assert obj == before


@given(SCHEMAS, VALUES)
def test_pruning_reports_every_field_that_it_removes(schema: dict[str, Any], value: Any) -> None:
    obj = without_nulls({"spec": value})
    before = copy(obj)
    assert (schema_of(without_defaults(schema)).shape(obj) == []) == (obj == before)


@given(SCHEMAS, VALUES)
def test_defaults_do_not_change_what_is_pruned(schema: dict[str, Any], value: Any) -> None:
    obj = {"spec": value}
    pruned = copy(obj)
    assert schema_of(schema).shape(obj) == schema_of(without_defaults(schema)).shape(pruned)


def test_a_default_gets_the_defaults_inside_it() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer", "default": 2}}, "default": {}}
    obj: Obj = {"spec": {}}
    assert schema_of({"type": "object", "properties": {"a": inner}}).shape(obj) == []
    assert obj == {"spec": {"a": {"b": 2}}}


def test_unknown_fields_are_named_by_their_path() -> None:
    schema = schema_of(
        {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object", "properties": {}}}}}
    )
    obj = {"apiVersion": "example.com/v1", "kind": "Thing", "spec": {"list": [{}, {"x": 1}], "y": 2}, "z": 3}
    assert schema.shape(obj) == ["spec.list[1].x", "spec.y", "z"]


def test_an_embedded_object_keeps_what_makes_it_an_object() -> None:
    schema = schema_of({"type": "object", "x-kubernetes-embedded-resource": True, "properties": {}})
    obj = {"spec": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "other": 1}}
    assert schema.shape(obj) == ["spec.other"]
    assert messages(schema, {"spec": {}}) == [
        "spec.apiVersion: Required value: must not be empty",
        "spec.kind: Required value: must not be empty",
    ]


def test_null_gives_way_to_a_default_unless_the_field_may_be_null() -> None:
    schema = schema_of(
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "default": "x"},
                "b": {"type": "string", "default": "x", "nullable": True},
            },
        }
    )
    obj: Obj = {"spec": {"a": None, "b": None}}
    schema.shape(obj)
    assert obj == {"spec": {"a": "x", "b": None}}
    assert messages(schema, obj) == []


@pytest.mark.parametrize(
    ("spec", "value", "fault"),
    [
        ({"type": "integer"}, "x", 'Invalid value: "string": spec.a in body must be of type integer: "string"'),
        ({"type": "string"}, None, 'Invalid value: "null": spec.a in body must be of type string: "null"'),
        ({"type": "string", "enum": ["p", "q"]}, "x", 'Unsupported value: "x": supported values: "p", "q"'),
        ({"type": "integer", "minimum": 1}, 0, "Invalid value: 0: spec.a in body should be greater than or equal to 1"),
        (
            {"type": "integer", "maximum": 1, "exclusiveMaximum": True},
            1,
            "Invalid value: 1: spec.a in body should be less than 1",
        ),
        ({"type": "string", "maxLength": 2}, "xyz", "Too long: may not be more than 2 bytes"),
        ({"type": "string", "minLength": 1}, "", 'Invalid value: "": spec.a in body should be at least 1 chars long'),
        ({"type": "string", "pattern": "^a$"}, "a\n", "Invalid value: \"a\\n\": spec.a in body should match '^a$'"),
        (
            {"type": "array", "maxItems": 1, "items": {"type": "integer"}},
            [1, 2],
            "Too many: 2: must have at most 1 item",
        ),
        (
            {"type": "string", "format": "date-time"},
            "noon",
            'Invalid value: "noon": spec.a in body must be of type date-time: "noon"',
        ),
        ({"type": "string", "format": "byte"}, "a", 'Invalid value: "a": spec.a in body must be of type byte: "a"'),
        (
            {"x-kubernetes-int-or-string": True},
            True,
            'Invalid value: "boolean": spec.a in body must be of type integer,string: "boolean"',
        ),
        (
            {
                "type": "object",
                "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
                "additionalProperties": {"type": "string"},
            },
            {},
            'Invalid value: {}: "spec.a" must validate one and only one schema (oneOf). Found none valid',
        ),
    ],
)
def test_faults_read_as_they_do_on_kubernetes(spec: dict[str, Any], value: Any, fault: str) -> None:
    schema = schema_of({"type": "object", "properties": {"a": spec}})
    assert messages(schema, {"spec": {"a": value}}) == [f"spec.a: {fault}"]


def test_a_missing_field_is_named_itself() -> None:
    schema = schema_of({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}})
    assert messages(schema, {"spec": {}}) == ["spec.a: Required value"]


def test_lists_of_type_set_and_map_hold_nothing_twice() -> None:
    item = {"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}}}
    schema = schema_of(
        {
            "type": "object",
            "properties": {
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "map": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": item,
                },
            },
        }
    )
    twice = {"set": ["a", "b", "a"], "map": [{"name": "x", "value": "1"}, {"name": "x", "value": "2"}]}
    assert messages(schema, {"spec": twice}) == [
        'spec.set[2]: Duplicate value: "a"',
        'spec.map[1]: Duplicate value: {"name":"x"}',
    ]


@pytest.mark.parametrize(
    ("obj", "fault"),
    [
        ({"spec": "x"}, "cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec"),
        (
            {"spec": {"containers": [{"name": 1}]}},
            "cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            {"spec": {"containers": {}}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"metadata": {"labels": {"a": True}}},
            "cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels.a of type string",
        ),
        (
            {"spec": {"hostNetwork": "yes"}},
            "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        (
            {"spec": {"priority": True}},
            "cannot unmarshal bool into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            {"spec": {"containers": [{"resources": {"limits": {"cpu": "much"}}}]}},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ],
)
def test_a_wrong_type_in_a_built_in_kind_is_a_bad_request(obj: Obj, fault: str) -> None:
    with pytest.raises(ApiError) as refused:
        pods().shape(obj)
    assert refused.value.code == 400
    assert refused.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert fault in refused.value.message


def test_a_wrong_type_in_the_metadata_of_a_custom_kind_is_a_bad_request() -> None:
    with pytest.raises(ApiError) as refused:
        schema_of({"type": "object"}).shape({"metadata": {"labels": []}, "spec": {}})
    assert refused.value.code == 400


def test_null_is_absent_and_quantities_are_canonical_in_built_in_kinds() -> None:
    limits = {"cpu": 0.5, "memory": "1024Mi", "example.com/device": 1}
    obj = {"metadata": {"creationTimestamp": None}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    assert pods().shape(obj) == []
    assert obj["metadata"] == {}
    assert limits == {"cpu": "500m", "memory": "1Gi", "example.com/device": "1"}


def test_empty_maps_and_lists_of_built_in_kinds_are_absent_but_empty_structs_are_not() -> None:
    obj: Obj = {
        "metadata": {"labels": {}, "finalizers": []},
        "spec": {"volumes": [{"name": "v", "emptyDir": {}}], "hostname": "", "containers": []},
    }
    pods().shape(obj)
    assert obj["metadata"] == {}
    assert obj["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert obj["spec"]["hostname"] == ""
    assert "containers" not in obj["spec"]


def test_an_empty_choice_is_absent_and_gets_its_default() -> None:
    obj: Obj = {"metadata": {}, "spec": {"restartPolicy": "", "containers": []}}
    pods().shape(obj)
    assert obj["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("path", "strategy"),
    [
        (("spec", "containers"), ("merge", "name")),
        (("spec", "containers", "ports"), ("merge", "containerPort")),
        (("spec", "volumes"), ("merge,retainKeys", "name")),
        (("metadata", "ownerReferences"), ("merge", "uid")),
        (("metadata", "finalizers"), ("merge", None)),
        (("spec", "containers", "command"), (None, None)),
        (("metadata", "labels", "anything"), (None, None)),
    ],
)
def test_merge_keys_are_those_of_kubernetes(path: tuple[str, ...], strategy: tuple[str | None, str | None]) -> None:
    assert pods().merge_key(path) == strategy


def test_a_type_may_contain_itself() -> None:
    kinds = Kinds()
    builtin.register(kinds, Mock())
    kind = kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    assert kind and kind.schema
    props = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"typo": 1}}}}}
    crd = {"spec": {"versions": [{"schema": {"openAPIV3Schema": props}}]}}
    assert kind.schema.shape(crd) == ["spec.versions[0].schema.openAPIV3Schema.properties.a.properties.b.typo"]


def test_every_built_in_kind_compiles() -> None:
    kinds = Kinds()
    builtin.register(kinds, Mock())
    for kind in kinds:
        assert kind.schema
        assert isinstance(kind.schema.validate({"metadata": {"name": "x"}}), list), kind.resource
        assert kind.schema.openapi()
    assert kinds.of_kind("v1", "Pod") is not None
    assert kinds.find(PODS.group, PODS.version, PODS.plural) is kinds.of_kind("v1", "Pod")
