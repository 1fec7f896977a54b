"""Selectors behave as Kubernetes' do: the string form, the object form, node terms and tolerations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.api.selectors import (
    NOTHING,
    Requirement,
    SelectorError,
    from_label_selector,
    label_key_error,
    label_value_error,
    node_selector_matches,
    parse_label_selector,
    tolerates,
)


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a=b", {}, False),
        ("a=", {"a": ""}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": "x"}, True),
        ("!a", {"a": "x"}, False),
        ("!a", {}, True),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b, c)", {"a": "d"}, False),
        ("a notin (b,c)", {}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a>3", {"a": "4"}, True),
        ("a<3", {"a": "4"}, False),
        ("a>3", {"a": "x"}, False),
        ("a=b,c=d", {"a": "b", "c": "d"}, True),
        ("a=b,c=d", {"a": "b"}, False),
        ("example.com/gpu=true", {"example.com/gpu": "true"}, True),
        ("x in (a),y notin (b),!z", {"x": "a", "y": "c"}, True),
    ],
)
def test_string_selectors_match_as_in_kubernetes(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_label_selector(text).matches(labels) is matches


@pytest.mark.parametrize("text", ["a=b,", "a in b", "a in (b", "=b", "a b", "-a=b", "a=b c", "a>x", "a==b=c", "a=-b"])
def test_a_malformed_selector_is_refused_with_its_reason(text: str) -> None:
    with pytest.raises(SelectorError, match=r"parse|integer"):
        parse_label_selector(text)


def test_an_absent_label_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert not from_label_selector(None).matches({})
    assert not NOTHING.matches({"": ""})
    assert from_label_selector({}).matches({"a": "b"})


def test_label_selector_objects_refuse_values_that_do_not_fit_the_operator() -> None:
    for bad in (
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "Exists", "values": ["x"]},
        {"key": "a", "operator": "Near", "values": ["x"]},
    ):
        with pytest.raises(SelectorError):
            from_label_selector({"matchExpressions": [bad]})


keys = st.sampled_from(["a", "b", "x.io/c"])
values = st.sampled_from(["", "1", "2", "z"])
labels_of_nodes = st.dictionaries(keys, values)
requirements = st.one_of(
    st.builds(
        Requirement, keys, st.sampled_from(["In", "NotIn"]), st.lists(values, min_size=1, unique=True).map(tuple)
    ),
    st.builds(Requirement, keys, st.sampled_from(["Exists", "DoesNotExist"])),
)


@given(requirements, labels_of_nodes)
def test_negations_are_complements(r: Requirement, labels: dict[str, str]) -> None:
    opposite = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}[r.op]
    assert r.matches(labels) is not Requirement(r.key, opposite, r.values).matches(labels)


@given(st.lists(requirements, max_size=4), labels_of_nodes)
def test_the_string_form_means_what_its_requirements_mean(wanted: list[Requirement], labels: dict[str, str]) -> None:
    def text(r: Requirement) -> str:
        match r.op:
            case "Exists":
                return r.key
            case "DoesNotExist":
                return f"!{r.key}"
            case _:
                return f"{r.key} {r.op.lower()} ({','.join(r.values)})"

    parsed = parse_label_selector(",".join(map(text, wanted)))
    assert parsed.matches(labels) is all(r.matches(labels) for r in wanted)


def test_node_terms_are_ored_their_expressions_anded_and_an_empty_term_admits_none() -> None:
    gpu = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    west = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["w"]}]}
    both = {"matchExpressions": gpu["matchExpressions"] + west["matchExpressions"]}
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert node_selector_matches(None, {}, "n")
    assert not node_selector_matches({"nodeSelectorTerms": []}, {}, "n")
    assert not node_selector_matches({"nodeSelectorTerms": [{}]}, {"gpu": "1"}, "n")
    assert node_selector_matches({"nodeSelectorTerms": [{}, gpu]}, {"gpu": "1"}, "n")
    assert node_selector_matches({"nodeSelectorTerms": [gpu, west]}, {"zone": "w"}, "n")
    assert not node_selector_matches({"nodeSelectorTerms": [both]}, {"zone": "w"}, "n")
    assert node_selector_matches({"nodeSelectorTerms": [named]}, {}, "n1")
    assert not node_selector_matches({"nodeSelectorTerms": [named]}, {}, "n2")


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], covered: bool) -> None:
    assert tolerates([toleration], {"key": "gpu", "value": "yes", "effect": "NoSchedule"}) is covered


def test_label_syntax() -> None:
    assert label_key_error("kubevirt.io/handler-pool") is None
    assert label_key_error("a" * 63) is None
    for bad in ("", "a" * 64, "/a", "A.io/a", "a/b/c", "a_", "x y"):
        assert label_key_error(bad), bad
    assert label_value_error("") is None
    for bad in ("a" * 64, "-a", "a b", "ä", "a\n"):
        assert label_value_error(bad), bad
