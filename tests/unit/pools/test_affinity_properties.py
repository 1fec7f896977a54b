"""Placement is exact: judged node by node against what pools mean, for thousands of fleets."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from virtfleet.pools.model import Pool, owner
from virtfleet.pools.overlap import overlaps, shadowed
from virtfleet.pools.placement import handler_placement, launcher_terms, restrict_affinity

from .nodes import Labels, pod_admits

KEYS = ("gpu", "zone", "tier", "arch")
VALUES = ("a", "b", "c")
LINUX = {"kubernetes.io/os": "linux"}

# Every node that can differ from another: each key missing, or with a value that pools name, or with another one.
NODES: list[Labels] = [
    {key: value for key, value in zip(KEYS, values, strict=True) if value}
    for values in product((None, *VALUES[:2], "other"), repeat=len(KEYS))
]

selectors = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES[:2]), min_size=1, max_size=3)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Pool, ...]:
    return tuple(
        Pool(f"pool{i}", "virtHandlerPools", i, dict(sorted(selector.items())), exclusive=draw(st.booleans()))
        for i, selector in enumerate(draw(st.lists(selectors, min_size=1, max_size=5)))
    )


expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "operator": st.sampled_from(("In", "NotIn")),
            "values": st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries({"key": st.sampled_from(KEYS), "operator": st.sampled_from(("Exists", "DoesNotExist"))}),
)
fields = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": st.sampled_from(("In", "NotIn")), "values": st.just(["node"])}
)
user_terms = st.one_of(
    st.just({}),
    st.just({"matchExpressions": []}),
    st.fixed_dictionaries({"matchExpressions": st.lists(expressions, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"matchFields": st.lists(fields, min_size=1, max_size=1)}),
)
affinities = st.one_of(
    st.none(),
    st.just({"nodeAffinity": {}}),
    st.just({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
    st.lists(user_terms, max_size=3).map(
        lambda terms: {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    ),
)


@settings(max_examples=examples(400), deadline=None)
@given(fleets())
def test_exactly_one_handler_admits_each_node_and_it_is_the_owner(pools: tuple[Pool, ...]) -> None:
    handlers = {pool.name if pool else "": handler_placement(pools, pool) for pool in (None, *pools)}
    for node in NODES:
        owned_by = owner(pools, node)
        admitted_by = [name for name, placement in handlers.items() if pod_admits(placement, LINUX | node)]
        assert admitted_by == [owned_by.name if owned_by else ""], node


@settings(max_examples=examples(250), deadline=None)
@given(fleets(), affinities, st.one_of(st.just({}), selectors))
def test_placement_of_workloads_restricts_every_handler_alike(
    pools: tuple[Pool, ...], affinity: dict[str, Any] | None, node_selector: Labels
) -> None:
    workloads = {"affinity": affinity, "nodeSelector": node_selector, "tolerations": [{"operator": "Exists"}]}
    handlers = {pool.name if pool else "": handler_placement(pools, pool, workloads) for pool in (None, *pools)}
    assert all(placement["tolerations"] == [{"operator": "Exists"}] for placement in handlers.values())
    for node in NODES:
        owned_by = owner(pools, node)
        wanted = [owned_by.name if owned_by else ""] if pod_admits(workloads, LINUX | node) else []
        assert [name for name, placement in handlers.items() if pod_admits(placement, LINUX | node)] == wanted, node


@settings(max_examples=examples(400), deadline=None)
@given(fleets(), affinities, st.one_of(st.just({}), selectors), st.integers(min_value=-1, max_value=4))
def test_a_launcher_pod_admits_what_its_vmi_and_its_pool_admit(
    pools: tuple[Pool, ...], affinity: dict[str, Any] | None, node_selector: Labels, chosen: int
) -> None:
    pool = pools[chosen] if 0 <= chosen < len(pools) else None
    own = {"affinity": affinity, "nodeSelector": node_selector}
    pod = {"affinity": restrict_affinity(affinity, launcher_terms(pools, pool)), "nodeSelector": node_selector}
    for node in NODES:
        owned_by = owner(pools, node)
        kept_for_others = owned_by is not None and owned_by.exclusive and owned_by is not pool
        wanted = pod_admits(own, node) and (pool is None or pool.selects(node)) and not kept_for_others
        assert pod_admits(pod, node) == wanted, node


@settings(max_examples=examples(300), deadline=None)
@given(fleets())
def test_overlaps_are_the_pairs_that_share_a_node_and_each_has_a_witness(pools: tuple[Pool, ...]) -> None:
    found = {(o.first.name, o.second.name): o.witness for o in overlaps(pools)}
    sharing = {
        (first.name, second.name)
        for i, first in enumerate(pools)
        for second in pools[i + 1 :]
        if any(first.selects(node) and second.selects(node) for node in NODES)
    }
    assert set(found) == sharing
    by_name = {pool.name: pool for pool in pools}
    assert all(by_name[a].selects(node) and by_name[b].selects(node) for (a, b), node in found.items())
    owning = {pool.name for node in NODES if (pool := owner(pools, node))}
    assert {pool.name for pool in shadowed(pools)} == set(by_name) - owning
