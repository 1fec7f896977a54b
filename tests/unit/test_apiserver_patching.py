"""Patches: the RFCs' examples, Kubernetes' strategic merge, and laws that hold for all objects."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import patching

POD = Kind(PODS, "pod", "PodList")
CUSTOM = Kind(Resource("example.io", "v1", "widgets", "Widget"), "widget", "WidgetList", custom=True)

KEYS: dict[tuple[str, ...], tuple[str | None, str | None]] = {
    ("containers",): ("merge", "name"),
    ("containers", "ports"): ("merge", "containerPort"),
    ("volumes",): ("merge,retainKeys", "name"),
    ("finalizers",): ("merge", None),
    ("selector",): ("replace", None),
}


def merge_key(path: tuple[str, ...]) -> tuple[str | None, str | None]:
    return KEYS.get(path, (None, None))


def strategic(obj: Any, patch: Any) -> Any:
    before = orjson.dumps(obj), orjson.dumps(patch)
    merged = patching.strategic_merge(obj, patch, merge_key)
    assert before == (orjson.dumps(obj), orjson.dumps(patch)), "arguments must stay as they were"
    return merged


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.text("abc", min_size=1, max_size=2), documents, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


class TestMergePatch:
    @pytest.mark.parametrize(
        ("target", "patch", "result"),
        [
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"a": "b"}, ["c"], ["c"]),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ],
    )
    def test_follows_the_examples_of_rfc_7386(self, target: Any, patch: Any, result: Any) -> None:
        assert patching.merge(target, patch) == result

    @given(objects, objects)
    def test_applied_twice_changes_nothing_more(self, target: Any, patch: Any) -> None:
        once = patching.merge(target, patch)
        assert patching.merge(once, patch) == once

    @given(objects, objects)
    def test_leaves_its_arguments_alone(self, target: Any, patch: Any) -> None:
        before = orjson.dumps([target, patch])
        patching.merge(target, patch)
        assert orjson.dumps([target, patch]) == before


def patched(obj: Any, operations: Any) -> Any:
    return patching.apply(POD, Patch.JSON, obj, operations)


class TestJsonPatch:
    def test_applies_operations_in_order(self) -> None:
        operations = [
            {"op": "test", "path": "/a/0", "value": 1},
            {"op": "add", "path": "/a/-", "value": 2},
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/a", "path": "/c"},
            {"op": "replace", "path": "/b/0", "value": 9},
            {"op": "remove", "path": "/b/1"},
        ]
        assert patched({"a": [1]}, operations) == {"b": [9], "c": [1, 2]}

    @pytest.mark.parametrize(
        ("operation", "code"),
        [
            ({"op": "test", "path": "/a", "value": 2}, 422),
            ({"op": "remove", "path": "/missing"}, 422),
            ({"op": "add", "path": "/list/9", "value": 1}, 422),
            ({"op": "add", "path": "/list/-2", "value": 1}, 422),
            ({"op": "replace", "path": "/list/0", "value": 1}, 422),
            ({"op": "remove", "path": "/list/x"}, 422),
            ({"op": "add", "path": "/a/b", "value": 1}, 422),
            ({"op": "add", "path": "/missing/b", "value": 1}, 422),
            ({"op": "move", "from": "/missing", "path": "/b"}, 422),
            ({"op": "copy", "path": "/b"}, 422),
            ({"op": "frob", "path": "/a"}, 422),
            ({"op": "add", "path": 3, "value": 1}, 422),
            ({"path": "/a"}, 422),
            ({"op": "replace", "path": "", "value": 7}, 422),
            ({"op": "remove", "path": ""}, 422),
            (7, 400),
        ],
    )
    def test_refuses_what_cannot_be_done(self, operation: Any, code: int) -> None:
        with pytest.raises(ApiError) as refused:
            patched({"a": 1, "list": []}, [operation])
        assert refused.value.code == code

    @pytest.mark.parametrize(
        ("operation", "after"),
        [
            ({"op": "replace", "path": "/missing", "value": 1}, {"a": 1, "list": [1, 2], "missing": 1}),
            ({"op": "test", "path": "/missing", "value": None}, {"a": 1, "list": [1, 2]}),
            ({"op": "remove", "path": "/list/-1"}, {"a": 1, "list": [1]}),
            ({"op": "add", "path": "/list/-1", "value": 3}, {"a": 1, "list": [1, 2, 3]}),
            ({"op": "add", "path": "/a"}, {"a": None, "list": [1, 2]}),
            ({"op": "add", "path": "frob/b", "value": 1}, {"a": 1, "list": [1, 2], "b": 1}),
            ({"op": "add", "path": "/b~1c~01", "value": 1}, {"a": 1, "list": [1, 2], "b/c~1": 1}),
        ],
    )
    def test_takes_the_liberties_that_kubernetes_takes(self, operation: Any, after: Any) -> None:
        assert patched({"a": 1, "list": [1, 2]}, [operation]) == after

    def test_is_limited_in_operations_and_in_what_copies_add(self) -> None:
        with pytest.raises(ApiError) as many:
            patched({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)
        assert many.value.code == 413
        doubling = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60
        with pytest.raises(ApiError) as big:
            patched({"a": ["x" * 100]}, doubling)
        assert big.value.code == 413

    @given(objects, objects)
    def test_replacing_the_whole_object_gives_that_object(self, target: Any, other: Any) -> None:
        assert patched(target, [{"op": "replace", "path": "", "value": other}]) == other


class TestStrategicMerge:
    def test_lists_with_a_merge_key_merge_item_by_item(self) -> None:
        obj = {"containers": [{"name": "a", "image": "1", "ports": [{"containerPort": 1}]}, {"name": "b"}]}
        patch = {"containers": [{"name": "a", "ports": [{"containerPort": 2}]}, {"name": "c", "image": "3"}]}
        assert strategic(obj, patch) == {
            "containers": [
                {"name": "a", "image": "1", "ports": [{"containerPort": 1}, {"containerPort": 2}]},
                {"name": "b"},
                {"name": "c", "image": "3"},
            ]
        }

    def test_other_lists_are_replaced(self) -> None:
        assert strategic({"args": [1, 2]}, {"args": [3]}) == {"args": [3]}

    def test_null_removes_a_field(self) -> None:
        assert strategic({"a": 1, "b": {"c": 1}}, {"a": None, "b": {"c": None}}) == {"b": {}}

    def test_an_item_is_deleted_by_directive(self) -> None:
        obj = {"containers": [{"name": "a"}, {"name": "b"}]}
        assert strategic(obj, {"containers": [{"name": "a", "$patch": "delete"}]}) == {"containers": [{"name": "b"}]}

    def test_a_list_is_replaced_by_directive(self) -> None:
        obj = {"containers": [{"name": "a"}, {"name": "b"}]}
        patch = {"containers": [{"name": "c"}, {"$patch": "replace"}]}
        assert strategic(obj, patch) == {"containers": [{"name": "c"}]}

    def test_a_map_is_replaced_or_emptied_by_directive(self) -> None:
        obj = {"m": {"a": 1}, "n": {"a": 1}}
        patch = {"m": {"$patch": "replace", "b": 2}, "n": {"$patch": "delete"}}
        assert strategic(obj, patch) == {"m": {"b": 2}, "n": {}}

    def test_a_field_whose_strategy_is_replace_does_not_merge(self) -> None:
        assert strategic({"selector": {"a": 1}}, {"selector": {"b": 2}}) == {"selector": {"b": 2}}

    def test_retained_keys_drop_the_others(self) -> None:
        obj = {"volumes": [{"name": "v", "emptyDir": {}}]}
        patch = {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}
        assert strategic(obj, patch) == {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}

    def test_primitive_lists_merge_as_sets_and_items_can_be_deleted(self) -> None:
        obj = {"finalizers": ["a", "b"]}
        assert strategic(obj, {"finalizers": ["b", "c"]}) == {"finalizers": ["a", "b", "c"]}
        assert strategic(obj, {"$deleteFromPrimitiveList/finalizers": ["a"]}) == {"finalizers": ["b"]}

    def test_the_clients_order_wins_and_the_servers_own_items_keep_their_places(self) -> None:
        obj = {"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}
        patch = {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
            "containers": [{"name": "new"}],
        }
        names = [c["name"] for c in strategic(obj, patch)["containers"]]
        assert names == ["server", "b", "new", "a"]

    @pytest.mark.parametrize(
        "patch",
        [
            {"$patch": "frob"},
            {"containers": [{"image": "no name"}]},
            {"$deleteFromPrimitiveList/finalizers": "a"},
            {"$retainKeys": "a"},
            {"$retainKeys": [], "a": 1},
        ],
    )
    def test_malformed_patches_are_bad_requests(self, patch: Any) -> None:
        with pytest.raises(ApiError) as refused:
            strategic({"containers": [], "finalizers": []}, patch)
        assert refused.value.code == 400

    @given(objects, objects)
    def test_without_merging_lists_it_is_a_merge_patch(self, target: Any, patch: Any) -> None:
        target = without_nulls(target)
        assert patching.strategic_merge(target, patch, lambda path: (None, None)) == patching.merge(target, patch)

    named = st.lists(
        st.fixed_dictionaries({"name": st.sampled_from("abcde"), "v": st.integers(0, 3)}),
        max_size=5,
        unique_by=lambda i: i["name"],
    )

    @given(named, named)
    def test_merged_lists_have_each_key_once_and_the_patchs_values(self, current: Any, patch: Any) -> None:
        merged = strategic({"containers": current}, {"containers": patch})["containers"]
        names = [item["name"] for item in merged]
        assert len(names) == len(set(names))
        assert set(names) == {i["name"] for i in current} | {i["name"] for i in patch}
        assert all(item in merged for item in patch)

    @given(named, named)
    def test_an_order_directive_only_reorders(self, current: Any, order: Any) -> None:
        keys = [{"name": item["name"]} for item in order]
        merged = strategic({"containers": current}, {"$setElementOrder/containers": keys})["containers"]
        assert sorted(orjson.dumps(i) for i in merged) == sorted(orjson.dumps(i) for i in current)
        wanted = [k["name"] for k in keys if k["name"] in {i["name"] for i in current}]
        assert [i["name"] for i in merged if i["name"] in wanted] == wanted


class TestFormats:
    def test_custom_kinds_have_no_strategic_merge(self) -> None:
        with pytest.raises(ApiError) as refused:
            patching.apply(CUSTOM, Patch.STRATEGIC, {}, {})
        assert refused.value.code == 415
        assert "accepted media types include: application/json-patch+json, application/merge-patch+json" in str(
            refused.value
        )

    @pytest.mark.parametrize("how", [Patch.MERGE, Patch.STRATEGIC, Patch.JSON])
    @pytest.mark.parametrize("patch", [7, "x", [1]])
    def test_patches_of_the_wrong_shape_are_bad_requests(self, how: Patch, patch: Any) -> None:
        with pytest.raises(ApiError) as refused:
            patching.apply(POD, how, {}, patch)
        assert refused.value.code == 400
