"""How deployments move their replicas from old sets to the new one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from virtfleet.local.controllers.rollout import Bounds, Set, grow, is_scaling, resized, rolling, scaled, shrink


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
    sizes = shrink(Bounds(4, 0, 1), Set("new", 0), [Set("older", 2, 2, created=1), Set("newer", 2, 1, created=2)])
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
    new, old = Set("new", 0), [Set(f"old{i}", n, n, created=i) for i, n in enumerate(others)]
    start = sum(others)
    for _ in range(500):
        sizes = rolling(bounds, new, old)
        if not sizes:
            break
        everything = {s.name: sizes.get(s.name, s.replicas) for s in [new, *old]}
        assert sum(everything.values()) <= max(bounds.most, start)
        # what is available right after the step, before any new pod gets ready
        assert sum(min(everything[s.name], s.available) for s in [new, *old]) >= min(bounds.least, start)
        new, *old = (Set(s.name, everything[s.name], everything[s.name], s.created) for s in [new, *old])
    assert new.replicas == replicas
    assert all(s.replicas == 0 for s in old)


def test_resizing_is_seen_by_what_the_sets_were_sized_for() -> None:
    assert is_scaling(5, [Set("a", 3, desired=3)])
    assert not is_scaling(3, [Set("a", 3, desired=3), Set("empty", 0, desired=9)])


def test_a_lone_set_takes_the_new_size() -> None:
    assert resized(Bounds(5), Set("a", 3, 3), [Set("old", 0)], was=3, rolling=True) == {"a": 5}
    assert resized(Bounds(5), None, [Set("x", 0, created=1), Set("y", 0, created=2)], was=0, rolling=True) == {"y": 5}


def test_resizing_in_the_middle_of_a_rollout_keeps_the_proportions() -> None:
    bounds = Bounds(15, 3, 2)
    new = Set("new", 5, 0, created=2, desired=10, maximum=13)
    old = [Set("old", 8, 8, created=1, desired=10, maximum=13)]
    assert resized(bounds, new, old, was=13, rolling=True) == {"old": 11, "new": 7}


def test_a_finished_new_set_takes_over_completely() -> None:
    new = Set("new", 4, 4, desired=4, maximum=5)
    assert resized(Bounds(4, 1, 0), new, [Set("adopted", 2, 2)], was=6, rolling=True) == {"adopted": 0}


@given(replicas=st.integers(0, 30), sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4), surge=st.integers(0, 5))
@example(replicas=1, sizes=[1, 1, 1, 1], surge=1)
def test_proportional_sizes_add_up_to_all_that_is_allowed(replicas: int, sizes: list[int], surge: int) -> None:
    bounds = Bounds.of(replicas, surge, 1)
    sets = [Set(f"s{i}", n, 0, created=i, desired=99, maximum=sum(sizes)) for i, n in enumerate(sizes)]
    result = resized(bounds, sets[-1], sets[:-1], was=sum(sizes), rolling=True)
    assert sum(result.values()) == (bounds.most if replicas else 0)
    assert all(n >= 0 for n in result.values())
