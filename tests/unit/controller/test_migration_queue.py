"""Who may migrate when: limits hold, nobody is passed over for ever, and one that waits takes no place of others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from virtfleet.controller.migration.queue import HEAD_STARTS, Limits, Place, next_to_begin

PRIORITIES = st.sampled_from(["", *HEAD_STARTS])


@st.composite
def places(draw: st.DrawFn, prefix: str) -> list[Place]:
    number = draw(st.integers(0, 12))
    return [
        Place(
            f"{prefix}{i}",
            vmi=f"vm{draw(st.integers(0, 15))}",
            node=f"n{draw(st.integers(0, 3))}",
            since=float(draw(st.integers(0, 10000))),
            priority=draw(PRIORITIES),
        )
        for i in range(number)
    ]


LIMITS = st.builds(Limits, st.integers(0, 8), st.integers(0, 4))


@given(places("w"), places("a"), LIMITS)
def test_limits_hold_and_a_vm_moves_once_at_a_time(waiting: list[Place], active: list[Place], limits: Limits) -> None:
    chosen = next_to_begin(waiting, active, limits)
    begun = [place for place in waiting if place.key in chosen]
    assert len(chosen) <= max(0, limits.cluster - len(active))
    before = Counter(place.node for place in active)
    for node, count in Counter(place.node for place in begun).items():
        assert before[node] + count <= limits.node
    vmis = [place.vmi for place in (*begun, *active)]
    assert all(vmis.count(place.vmi) == 1 for place in begun)


@given(places("w"), places("a"), LIMITS)
def test_no_place_stays_empty_that_somebody_could_have(
    waiting: list[Place], active: list[Place], limits: Limits
) -> None:
    chosen = next_to_begin(waiting, active, limits)
    begun = [*active, *(place for place in waiting if place.key in chosen)]
    if len(begun) >= limits.cluster:
        return
    outbound, vmis = Counter(place.node for place in begun), {place.vmi for place in begun}
    first = {}
    for place in sorted(waiting, key=lambda p: p.order):
        first.setdefault(place.vmi, place)
    for place in first.values():
        assert place.key in chosen or place.vmi in vmis or outbound[place.node] >= limits.node


@given(places("w"), LIMITS)
def test_first_come_first_served_on_each_node(waiting: list[Place], limits: Limits) -> None:
    """Whoever begins has nobody of his node before him who could have begun in his place."""
    chosen = next_to_begin(waiting, [], limits)
    served = [place for place in waiting if place.key in chosen]
    for place in waiting:
        later = [other for other in served if other.node == place.node and other.order > place.order]
        twin = any(other.vmi == place.vmi and other.order < place.order for other in waiting)
        assert place.key in chosen or twin or not later


@given(places("w"), PRIORITIES)
def test_nobody_waits_for_ever(waiting: list[Place], priority: str) -> None:
    """One place, and a steady stream of the highest priority: each of the others gets its turn."""
    patient = Place("patient", "vm", "n0", since=0.0, priority=priority)
    queue, now = [*waiting, patient], 0.0
    for turn in range(200):
        now += 600.0
        queue.append(Place(f"urgent{turn}", f"urgent{turn}", "n0", since=now, priority="system-critical"))
        (key, *_) = next_to_begin(queue, [], Limits(1, 1))
        queue = [place for place in queue if place.key != key]
        if key == "patient":
            return
    raise AssertionError("200 others were served first")


def test_one_that_waits_for_its_node_takes_no_place_of_the_cluster() -> None:
    """A node that is drained must not fill the limit of all with those that wait for its own."""
    drained = [Place(f"d{i}", f"d{i}", "busy", since=float(i)) for i in range(10)]
    other = Place("other", "other", "free", since=99.0)
    assert next_to_begin([*drained, other], [], Limits(5, 2)) == ["d0", "d1", "other"]


def test_a_higher_priority_goes_first() -> None:
    waiting = [Place(name or "none", name, "n", since=0.0, priority=name) for name in ("", *HEAD_STARTS)]
    order = [next_to_begin([p for p in waiting if p.key not in done], [], Limits(1, 1)) for done in ([],)]
    assert order == [["system-critical"]]
