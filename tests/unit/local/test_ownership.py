"""Server-side apply: what an applier's fields become, and laws that hold for all objects and appliers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from virtfleet.local.apiserver.kinds.schema import SchemaNode, compile_node
from virtfleet.local.apiserver.objects import ownership
from virtfleet.local.apiserver.objects.ownership import ApplyError, ConflictError, Manager, shown

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "protocol": {"type": "string", "default": "TCP"},
        "image": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                "managedFields": {"type": "array"},
            },
        },
        "spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "items": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "protocol"],
                    "items": ITEM,
                },
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "order": {"type": "array", "items": {"type": "string"}},
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    },
}
ROOT: SchemaNode = compile_node(SCHEMA, typed=False)
NAMES = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["x", "y"])
ITEMS = st.dictionaries(NAMES, st.fixed_dictionaries({}, optional={"image": TEXTS, "args": st.lists(TEXTS)})).map(
    lambda items: [{"name": name, **rest} for name, rest in items.items()]
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "labels": st.dictionaries(NAMES, TEXTS),
        "whole": st.dictionaries(NAMES, TEXTS),
        "free": st.dictionaries(NAMES, TEXTS | st.lists(TEXTS) | st.dictionaries(NAMES, TEXTS)),
        "items": ITEMS,
        "tags": st.lists(NAMES, unique=True),
        "order": st.lists(TEXTS),
    },
)


def obj(spec: Any, **metadata: Any) -> Any:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "t", **metadata}, "spec": spec}


def applied(live: Any, spec: Any, who: str = "me", *, force: bool = False, now: str = "2026-01-01T00:00:00Z") -> Any:
    before = orjson.dumps([live, spec])
    result = ownership.apply(ROOT, live, obj(spec), Manager(who, "Apply", "v1"), now, force=force)
    assert orjson.dumps([live, spec]) == before, "arguments must stay as they were"
    return result


def updated(live: Any, spec: Any, who: str = "editor", given: Any = None, subresource: str = "") -> Any:
    new = {**live, "spec": spec, "metadata": {k: v for k, v in live["metadata"].items() if k != "managedFields"}}
    manager = Manager(who, "Update", "v1", subresource)
    return ownership.update(ROOT, live, new, given, manager, "2026-01-02T00:00:00Z")


def managers(thing: Any) -> dict[str, set[str]]:
    return {m.manager.name: {shown(path) for path in m.fields} for m in ownership.read(thing).values()}


# Laws


@given(SPECS)
def test_what_is_applied_is_there(spec: Any) -> None:
    assert applied({}, spec)["spec"] == spec


@given(SPECS, SPECS)
def test_applying_twice_is_applying_once(before: Any, spec: Any) -> None:
    once = applied(applied({}, before), spec)
    assert applied(once, spec, now="2030-01-01T00:00:00Z") == once


@given(SPECS, SPECS)
def test_a_single_applier_decides_everything(before: Any, spec: Any) -> None:
    left = applied(applied({}, before), spec).get("spec", {})
    for empty in ("labels", "free", "items", "tags"):  # what lost its last member may be gone or empty
        for one in (left, spec):
            if not one.get(empty):
                one.pop(empty, None)
    for part in ("items", "tags"):
        left[part], spec[part] = (sorted(one.get(part, []), key=str) for one in (left, spec))
    assert left == spec


@given(SPECS, SPECS, SPECS)
def test_what_another_manages_stays_or_is_a_conflict(mine: Any, theirs: Any, later: Any) -> None:
    live = applied(applied({}, mine), theirs, "you", force=True)
    yours = ownership.read(live)["Apply", "you", "", ""].fields
    try:
        after = applied(live, later)
    except ConflictError as error:
        assert {path for _, path in error.conflicts} <= yours
        assert {manager.name for manager, _ in error.conflicts} == {"you"}
        return
    added, removed, changed = ownership.differences(ROOT, live, after)
    assert not yours & (added | removed | changed)
    assert ownership.read(after)["Apply", "you", "", ""].fields == yours if yours else True


@given(SPECS, SPECS, SPECS)
def test_force_takes_over_what_is_in_the_way(mine: Any, theirs: Any, later: Any) -> None:
    live = applied(applied({}, mine), theirs, "you", force=True)
    after = applied(live, later, force=True)
    for path in ownership.fields(ROOT, {"spec": later}):
        assert path in ownership.read(after)["Apply", "me", "", ""].fields
    assert ownership.apply(ROOT, after, obj(later), Manager("me", "Apply", "v1"), "", force=False) == after


@given(SPECS, SPECS)
def test_what_somebody_writes_is_theirs_and_the_record_survives_encoding(mine: Any, new: Any) -> None:
    live = applied({}, mine)
    after = updated(live, new)
    added, removed, changed = ownership.differences(ROOT, live, after)
    record = ownership.read(after)
    written = {path for path in added | changed if path[0] == "f:spec"}
    assert written <= (record["Update", "editor", "", "v1"].fields if written else set())
    assert not any(m.fields & (written | removed) for m in record.values() if m.manager.name == "me")
    assert ownership.read(orjson.loads(orjson.dumps(after))) == record


@given(
    st.recursive(
        st.none() | st.text() | st.integers(-(2**63), 2**63),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_a_record_that_makes_no_sense_is_not_taken(given: Any) -> None:
    assume(given != [{}])
    live = applied({}, {"replicas": 1})
    after = updated(live, {"replicas": 1}, given=given)
    assert after["metadata"]["managedFields"] == live["metadata"]["managedFields"]


# Cases


def test_a_conflict_names_manager_and_field() -> None:
    live = applied({}, {"items": [{"name": "c", "image": "x"}], "replicas": 1, "tags": ["a"]}, "you")
    with pytest.raises(ConflictError) as caught:
        applied(live, {"replicas": 2})
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "you": .spec.replicas'
    with pytest.raises(ConflictError) as caught:
        applied(updated(live, {**live["spec"], "replicas": 5}), {"items": [{"name": "c", "image": "y"}], "replicas": 2})
    assert str(caught.value) == (
        "Apply failed with 2 conflicts: "
        'conflicts with "editor" using v1:\n- .spec.replicas\n'
        'conflicts with "you":\n- .spec.items[name="c",protocol="TCP"].image'
    )


def test_what_was_there_before_the_first_apply_is_somebodys() -> None:
    live = obj({"replicas": 1, "labels": {"a": "x"}})
    with pytest.raises(ConflictError, match=r'conflict with "before-first-apply" using v1: \.spec\.replicas'):
        applied(live, {"replicas": 2})
    after = applied(live, {"labels": {"b": "y"}})
    assert after["spec"] == {"replicas": 1, "labels": {"a": "x", "b": "y"}}
    assert managers(after) == {
        "before-first-apply": {".spec", ".spec.replicas", ".spec.labels", ".spec.labels.a"},
        "me": {".spec.labels.b"},
    }


def test_what_a_client_side_apply_set_is_kubectls_to_change() -> None:
    note = orjson.dumps(obj({"replicas": 1})).decode()
    live = obj({"replicas": 1, "labels": {"a": "x"}}, annotations={ownership.LAST_APPLIED: note})
    after = applied(live, {"replicas": 2}, "kubectl")
    assert after["spec"]["replicas"] == 2
    assert f".metadata.annotations.{ownership.LAST_APPLIED}" in managers(after)["kubectl-client-side-apply"]
    with pytest.raises(ConflictError):
        applied(live, {"replicas": 2}, "another")
    with pytest.raises(ConflictError):
        applied(live, {"labels": {"a": "y"}}, "kubectl")


def test_an_item_goes_with_all_that_is_in_it_unless_another_has_it() -> None:
    live = applied({}, {"items": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]})
    live = applied(live, {"items": [{"name": "b", "args": ["1"]}]}, "you")
    after = applied(live, {})
    assert after["spec"] == {"items": [{"name": "b", "args": ["1"]}]}


def test_an_object_keeps_its_name_when_nobody_manages_any_of_its_metadata() -> None:
    live = ownership.apply(
        ROOT, {}, obj({}, annotations={"a": "b"}), Manager("me", "Apply", "v1"), "2026-01-01T00:00:00Z", force=False
    )
    assert applied(live, {})["metadata"]["name"] == "t"


@pytest.mark.parametrize(
    ("live", "wanted", "merged"),
    [
        ("abc", "cb", "acb"),
        ("abc", "xb", "axbc"),
        ("", "ba", "ba"),
        ("ab", "", "ab"),
        ("abcd", "da", "bcda"),
    ],
)
def test_lists_are_in_the_appliers_order(live: str, wanted: str, merged: str) -> None:
    start = applied({}, {"tags": list(live)}, "you")
    assert applied(start, {"tags": list(wanted)})["spec"].get("tags", []) == list(merged)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            {"items": [{"name": "a"}, {"name": "a", "protocol": "TCP"}]},
            'duplicate entries for key [name="a",protocol="TCP"]',
        ),
        ({"items": ["text"]}, "an item lacks its key (name, protocol)"),
        ({"tags": ["a", "a"]}, 'duplicate entries for key [="a"]'),
    ],
)
def test_lists_whose_items_cannot_be_told_apart_are_refused(spec: Any, why: str) -> None:
    with pytest.raises(ApplyError, match=r"^\.spec\.\w+: ") as caught:
        ownership.check(ROOT, obj(spec))
    assert why in str(caught.value)


def test_the_status_is_managed_through_its_subresource_only() -> None:
    live = {**applied({}, {"replicas": 1}), "status": {"ready": False}}
    after = ownership.update(
        ROOT, live, {**live, "status": {"ready": True}}, None, Manager("agent", "Update", "v1", "status"), ""
    )
    assert managers(after) == {"me": {".spec.replicas"}, "agent": {".status.ready"}}
    kept = ownership.update(ROOT, after, obj({"replicas": 2}), None, Manager("editor", "Update", "v1"), "")
    assert managers(kept) == {"agent": {".status.ready"}, "editor": {".spec.replicas"}}


@pytest.mark.slow
def test_many_updaters_become_one_and_many_appliers_are_refused() -> None:
    live = applied({}, {"labels": {}})
    for number in range(30):
        live = updated(live, {"labels": {**live["spec"]["labels"], f"k{number}": "x"}}, f"m{number}")
    names = managers(live)
    assert len(names) == 11
    assert ".spec.labels.k0" in names["ancient-changes"]
    big = {"labels": {f"{'k' * 60}{number}": "x" for number in range(2000)}}
    with pytest.raises(ApplyError, match="too many manage too much"):
        for number in range(100):
            live = applied(live, big, f"a{number}")


def test_a_record_can_be_reset() -> None:
    assert "managedFields" not in updated(applied({}, {"replicas": 1}), {"replicas": 1}, given=[{}])["metadata"]
