"""The difference between what is installed and what should be."""

from __future__ import annotations

from typing import Any

import jsonpatch
import orjson
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.operator.apply import Comparer, covers, difference
from virtfleet.operator.render import APPLIED, stamped

from .fleets import objects, pool


def service(**spec: Any) -> dict[str, Any]:
    return stamped(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "labels": {"a": "b"}}, "spec": spec}
    )


def test_defaults_of_the_server_and_labels_of_others_are_no_difference() -> None:
    wanted = service(ports=[{"port": 443}])
    installed = {
        **wanted,
        "metadata": {**wanted["metadata"], "labels": {"a": "b", "team": "x"}, "uid": "1"},
        "spec": {"ports": [{"port": 443, "protocol": "TCP"}], "clusterIP": "10.0.0.1"},
    }
    assert difference(installed, wanted) == []


def test_a_change_by_hand_is_a_difference() -> None:
    wanted = service(ports=[{"port": 443}])
    installed = {**wanted, "spec": {"ports": [{"port": 80}], "clusterIP": "10.0.0.1"}}
    [operation] = difference(installed, wanted)
    assert operation == {"op": "add", "path": "/spec/ports", "value": [{"port": 443}]}


def test_what_was_right_is_looked_at_again_when_either_side_has_changed() -> None:
    def at(revision: str, obj: dict[str, Any], uid: str = "1") -> dict[str, Any]:
        return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": revision}}

    comparer, wanted, wrong = Comparer(), service(ports=[{"port": 443}]), {"spec": {"ports": [{"port": 80}]}}
    for _ in range(2):
        assert comparer.difference(at("7", wanted), wanted) == []
    assert comparer.difference(at("7", wanted) | wrong, wanted) == [], "one revision has one content"
    for _ in range(2):
        assert comparer.difference(at("8", wanted) | wrong, wanted) == difference(wanted | wrong, wanted) != []
    assert comparer.difference(at("7", wanted, uid="2") | wrong, wanted) != [], "it is another object"
    other = service(ports=[{"port": 80}])
    assert comparer.difference(at("7", wanted), other) == difference(wanted, other) != []


def test_what_is_no_longer_wanted_goes_with_the_part_that_it_was_in() -> None:
    before, after = service(selector={"a": "1", "b": "2"}), service(selector={"a": "1"})
    assert jsonpatch.apply_patch(before, difference(before, after))["spec"] == {"selector": {"a": "1"}}


def test_a_field_that_is_no_longer_wanted_goes_and_what_the_server_added_stays() -> None:
    before, after = service(ports=[], sessionAffinity="ClientIP"), service(ports=[])
    installed = {**before, "spec": {**before["spec"], "clusterIP": "10.0.0.1"}}
    changed = jsonpatch.apply_patch(installed, difference(installed, after))
    assert changed["spec"] == {"ports": [], "clusterIP": "10.0.0.1"}
    assert difference(changed, after) == []


def test_labels_and_annotations_that_are_no_longer_wanted_go_and_those_of_others_stay() -> None:
    def noted(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": "s", "labels": labels, "annotations": annotations}
        return stamped({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}})

    before, after = noted({"a": "1", "our/old": "x"}, {"our/note": "x"}), noted({"a": "1"}, {})
    installed = orjson.loads(orjson.dumps(before))
    installed["metadata"]["labels"]["team"] = "infra"
    installed["metadata"]["annotations"]["note"] = "theirs"
    changed = jsonpatch.apply_patch(installed, difference(installed, after))
    assert changed["metadata"]["labels"] == {"a": "1", "team": "infra"}
    assert changed["metadata"]["annotations"].keys() == {"note", APPLIED}


def test_a_section_that_is_no_longer_wanted_goes() -> None:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    before, after = stamped({**made, "data": {"a": "1"}, "immutable": True}), stamped({**made, "data": {"a": "1"}})
    assert jsonpatch.apply_patch(before, difference(before, after)) == after


def test_what_an_older_operator_or_somebody_else_wrote_into_the_record_is_no_reason_to_fail() -> None:
    wanted = service(ports=[])
    odd = '{"spec": "ports", "labels": [1], "metadata": ["name"]}'
    for record in ("0123456789abcdef", "[]", "{", odd, '{"a/b": 1}'):
        installed = {**wanted, "metadata": {**wanted["metadata"], "annotations": {APPLIED: record}}}
        assert jsonpatch.apply_patch(installed, difference(installed, wanted)) == wanted


def test_quantities_are_compared_as_amounts() -> None:
    assert covers({"requests": {"memory": "1Gi", "cpu": "100m"}}, {"requests": {"memory": "1024Mi", "cpu": "0.1"}})
    assert not covers({"requests": {"memory": "1Gi"}}, {"requests": {"memory": "2Gi"}})
    assert not covers({"requests": {"memory": "1Gi", "cpu": "1"}}, {"requests": {"memory": "1Gi", "cpu": "2"}})


def test_one_patch_is_enough_between_any_two_installations() -> None:
    old = objects(virtHandlerPools=[pool("a")], imagePullSecrets=[{"name": "s"}])
    new = objects(imageTag="v2", infra={"replicas": 3}, workloads={"nodePlacement": {"nodeSelector": {"x": "y"}}})
    for key in old.keys() & new.keys():
        changed = jsonpatch.apply_patch(old[key], difference(old[key], new[key]))
        assert difference(changed, new[key]) == []
        assert changed == new[key]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text("xy/~", min_size=1, max_size=2), JSON, max_size=4), JSON)
def test_an_object_covers_itself_and_what_it_was_before_the_server_added_to_it(
    spec: dict[str, Any], added: Any
) -> None:
    wanted = service(**spec)
    assert difference(orjson.loads(orjson.dumps(wanted)), wanted) == []
    more = {**wanted, "spec": {**wanted["spec"], "addedByTheServer": added}}
    assert difference(more, wanted) == []


def test_what_others_add_to_an_instance_type_of_ours_goes() -> None:
    wanted = objects()["VirtualMachineClusterInstancetype", "u1.small"]
    assert difference(wanted, wanted) == []
    changed = orjson.loads(orjson.dumps(wanted))
    changed["metadata"]["labels"]["test"] = changed["metadata"]["annotations"]["test"] = "modified"
    changed["spec"] |= {"ioThreadsPolicy": "auto", "cpu": {"guest": 1024}}
    changed["spec"]["memory"]["maxGuest"] = "8Gi"
    assert jsonpatch.apply_patch(changed, difference(changed, wanted)) == wanted


def test_nothing_that_is_installed_goes_with_another_object() -> None:
    wanted = service(ports=[])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
    owned = {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [owner]}}
    assert jsonpatch.apply_patch(owned, difference(owned, wanted)) == wanted
