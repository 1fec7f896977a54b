"""How deployments move their replicas from old sets to the new one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.controllers.deployment import Bounds, Set, grow, rolling, scaled, shrink


@pytest.mark.parametrize(
    ("amount", "total", "up", "expected"),
    [("25%", 10, True, 3), ("25%", 10, False, 2), ("100%", 7, True, 7), (3, 10, True, 3), (None, 10, True, 0)],
)
def test_amounts_are_numbers_or_percentages(amount: int | str | None, total: int, up: bool, expected: int) -> None:
    assert scaled(amount, total, up=up) == expected


def test_bounds_that_round_to_nothing_still_let_one_pod_go() -> None:
    assert Bounds.of(1, "0%", "25%") == Bounds(1, 0, 1)
    assert Bounds.of(3, "25%", "25%") == Bounds(3, 1, 0)


def test_the_new_set_grows_by_the_surge_only() -> None:
    assert grow(Bounds(10, 3, 2), Set("new", 0), [Set("old", 10, 10)]) == 3


def test_the_old_set_shrinks_by_what_is_available_beyond_the_minimum() -> None:
    assert shrink(Bounds(10, 3, 2), Set("new", 3, 0), [Set("old", 10, 10)]) == {"old": 8}


def test_unhealthy_old_replicas_go_first_even_where_another_set_is_older() -> None:
    sizes = shrink(Bounds(4, 0, 1), Set("new", 0), [Set("older", 2, 2), Set("newer", 2, 1)])
    assert sizes == {"newer": 1}


def test_crashing_new_pods_do_not_cost_more_old_ones() -> None:
    assert rolling(Bounds(10, 3, 2), Set("new", 5, 0), [Set("old", 8, 8)]) == {}


def test_an_old_set_is_scaled_up_again_after_a_rollback() -> None:
    bounds = Bounds(10, 3, 2)
    assert rolling(bounds, Set("good", 8, 7), [Set("bad", 5, 0)]) == {"bad": 1}
    assert rolling(bounds, Set("good", 8, 7), [Set("bad", 1, 0)]) == {"good": 10}


@given(
    replicas=st.integers(0, 20),
    surge=st.integers(0, 10),
    unavailable=st.integers(0, 10),
    others=st.lists(st.integers(0, 8), max_size=3),
)
def test_a_rollout_ends_with_the_new_set_only_and_stays_within_its_bounds(
    replicas: int, surge: int, unavailable: int, others: list[int]
) -> None:
    bounds = Bounds.of(replicas, surge, unavailable)
    new, old = Set("new", 0), [Set(f"old{i}", n, n) for i, n in enumerate(others)]
    start = sum(others)
    for _ in range(500):
        sizes = rolling(bounds, new, old)
        if not sizes:
            break
        everything = {s.name: sizes.get(s.name, s.replicas) for s in [new, *old]}
        assert sum(everything.values()) <= max(bounds.replicas + bounds.surge, start)
        # what is available right after the step, before any new pod gets ready
        assert sum(min(everything[s.name], s.available) for s in [new, *old]) >= min(bounds.least, start)
        new, *old = (Set(s.name, everything[s.name], everything[s.name]) for s in [new, *old])
    assert new.replicas == replicas
    assert all(s.replicas == 0 for s in old)
