"""Terms are few, in a stable order, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.review import review
from virtfleet.installation import Installation
from virtfleet.pools.model import pools_of
from virtfleet.pools.overlap import shadowed
from virtfleet.pools.terms import MAX_TERMS, TooManyTermsError, admitted, expressions


def not_in(*selectors: dict[str, str]) -> list[list[dict[str, object]]]:
    return [expressions(term) for term in admitted([*((s, False) for s in selectors), ({}, True)])]


def test_not_both_is_two_terms() -> None:
    assert not_in({"gpu": "true", "zone": "a"}) == [
        [{"key": "gpu", "operator": "NotIn", "values": ["true"]}],
        [{"key": "zone", "operator": "NotIn", "values": ["a"]}],
    ]


def test_two_pools_of_two_keys_are_four_terms() -> None:
    assert len(not_in({"a": "1", "b": "2"}, {"c": "3", "d": "4"})) == 4


def test_values_of_one_key_share_one_expression() -> None:
    assert not_in(*({"accelerator": f"model-{i}"} for i in range(3))) == [
        [{"key": "accelerator", "operator": "NotIn", "values": ["model-0", "model-1", "model-2"]}]
    ]


def test_a_wider_pool_makes_a_narrower_one_superfluous() -> None:
    assert not_in({"gpu": "a", "zone": "w"}, {"gpu": "a"}) == not_in({"gpu": "a"})


def test_a_grid_over_two_keys_is_two_terms() -> None:
    assert len(not_in(*({"gpu": f"m{i}", "zone": f"z{j}"} for i in range(5) for j in range(4)))) == 2


def test_twenty_pools_that_share_two_keys_take_a_term_each_where_the_cross_product_has_a_million() -> None:
    assert len(not_in(*({"gpu": f"m{i}", "zone": f"z{i}"} for i in range(20)))) == 21


def test_pools_without_common_keys_multiply_up_to_the_bound() -> None:
    pairs = [{f"a{i}": "1", f"b{i}": "1"} for i in range(8)]
    assert len(not_in(*pairs)) == MAX_TERMS
    with pytest.raises(TooManyTermsError, match="a label of their own"):
        not_in(*pairs, {"a8": "1", "b8": "1"})
    with pytest.raises(TooManyTermsError):
        not_in(*({f"a{i}": "1", f"b{i}": "1", f"c{i}": "1"} for i in range(40)))


def test_pools_with_keys_of_their_own_are_worked_out_apart() -> None:
    shared = [{"gpu": f"m{i}", "zone": f"z{i}"} for i in range(20)]
    apart = {"tier": "gold", "rack": "9"}
    together, alone, other = not_in(*shared, apart), not_in(*shared), not_in(apart)
    assert sorted(map(repr, together)) == sorted(
        repr(sorted([*one, *two], key=lambda e: str(e["key"]))) for one in alone for two in other
    )


def fleet(*selectors: dict[str, str]) -> dict[str, Any]:
    entries = [
        {
            "name": f"p{i}",
            "virtLauncherImage": "launcher:1",
            "nodeSelector": selector,
            "selector": {"deviceNames": [f"x.io/d{i}"]},
        }
        for i, selector in enumerate(selectors)
    ]
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": gates, "virtHandlerPools": entries},
    }


def test_a_fleet_that_cannot_be_told_apart_is_refused_with_advice_and_nothing_else() -> None:
    kubevirt = fleet(*({f"{key}{i}": "1" for key in "abc"} for i in range(40)))
    found = review(kubevirt, Installation(kubevirt))
    [cause] = found.causes
    assert (cause.field, "a label of their own" in cause.message) == ("spec.virtHandlerPools", True)
    assert not found.warnings
    assert shadowed(pools_of(kubevirt)) == []


def test_of_many_overlaps_a_few_are_named_and_the_rest_counted() -> None:
    kubevirt = fleet(*({f"pool{i}": "1"} for i in range(50)))
    found = review(kubevirt, Installation(kubevirt))
    assert found.allowed
    assert "pools p0 and p1 overlap: a node with pool0=1, pool1=1 belongs to p0" in found.warnings[0]
    assert found.warnings[-1].startswith("1215 more pairs of pools overlap")
