"""Which policy a migration follows, and what it follows then."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.controller.migration.records import Policy, decode_policy, in_force, matching
from virtfleet.installation import Installation

LABELS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"))


def a_policy(
    name: str, vmi: dict[str, str] | None = None, namespace: dict[str, str] | None = None, **how: object
) -> Policy:
    selectors = {"virtualMachineInstanceSelector": vmi or {}, "namespaceSelector": namespace or {}}
    return decode_policy(orjson.dumps({"metadata": {"name": name}, "spec": {"selectors": selectors, **how}}))


@given(st.lists(st.tuples(LABELS, LABELS), max_size=6), LABELS, LABELS)
def test_the_most_specific_one_that_fits(
    selectors: list[tuple[dict[str, str], dict[str, str]]], vmi: dict[str, str], namespace: dict[str, str]
) -> None:
    policies = [a_policy(f"p{i}", *both) for i, both in enumerate(selectors)]
    chosen = matching(policies, vmi, namespace)
    fitting = [
        (len(of_vmi) + len(of_namespace), len(of_vmi), -i)
        for i, (of_vmi, of_namespace) in enumerate(selectors)
        if of_vmi.items() <= vmi.items() and of_namespace.items() <= namespace.items()
    ]
    assert (chosen.name if chosen else None) == (f"p{-max(fitting)[2]}" if fitting else None)
    assert matching(reversed(policies), vmi, namespace) is chosen


def test_one_without_selectors_fits_nothing() -> None:
    policy = decode_policy(orjson.dumps({"metadata": {"name": "p"}, "spec": {}}))
    assert matching([policy], {"a": "b"}, {}) is None


@pytest.mark.parametrize("configured", [{}, {"allowPostCopy": True, "progressTimeout": 7, "network": "fast"}])
def test_what_the_policy_leaves_out_is_as_the_cluster_is_set_up(configured: dict[str, object]) -> None:
    settings = Installation({"spec": {"configuration": {"migrations": configured}}}).migrations
    plain = in_force(settings, None)
    assert configured.items() <= plain.items()
    assert plain["allowWorkloadDisruption"] is plain["allowPostCopy"]
    assert "parallelMigrationsPerCluster" not in plain
    policy = a_policy("p", bandwidthPerMigration="64Mi", allowPostCopy=False)
    changed = {"bandwidthPerMigration": "64Mi", "allowPostCopy": False, "allowWorkloadDisruption": False}
    assert in_force(settings, policy) == {**plain, **changed}


def test_limits_have_defaults() -> None:
    settings = Installation({}).migrations
    assert (settings.parallel_migrations_per_cluster, settings.parallel_outbound_migrations_per_node) == (5, 2)
