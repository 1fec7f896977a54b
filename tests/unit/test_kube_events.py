"""Which Event objects come of what happens: repeated ones count, similar ones combine, spam is cut."""

from __future__ import annotations

from virtfleet.kube.events import Correlator, Occurrence, Reference

VMI = Reference("kubevirt.io/v1", "VirtualMachineInstance", "default", "vm1", "uid-1")


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def happened(message: str, about: Reference = VMI, reason: str = "Failed") -> Occurrence:
    return Occurrence(about, "Warning", reason, message)


def test_the_same_event_again_raises_the_count_of_the_first() -> None:
    clock = Clock()
    correlator = Correlator(clock)
    first = correlator.correlate(happened("no space"))
    assert first is not None
    assert (first.count, first.first, first.last) == (1, first.last, first.first)
    name = first.name
    clock.now += 30
    again = correlator.correlate(happened("no space"))
    assert again is not None
    assert (again.name, again.count) == (name, 2)
    assert again.last - again.first == 30


def test_events_that_differ_in_reason_or_object_are_separate() -> None:
    correlator = Correlator(Clock())
    other = Reference("kubevirt.io/v1", "VirtualMachineInstance", "default", "vm2", "uid-2")
    series = [
        correlator.correlate(happened("m")),
        correlator.correlate(happened("m", reason="Stopped")),
        correlator.correlate(happened("m", about=other)),
    ]
    assert [s.count for s in series if s] == [1, 1, 1]


def test_after_ten_messages_of_one_kind_the_others_are_combined() -> None:
    correlator = Correlator(Clock())
    series = [correlator.correlate(happened(f"attempt {n}")) for n in range(12)]
    assert [s.count for s in series if s] == [1] * 10 + [2, 2]  # the last two are one, seen twice
    assert series[10] is series[11] is not None
    assert series[11].message == "(combined from similar events): attempt 11"
    known = correlator.correlate(happened("attempt 3"))
    assert known is series[3] is not None
    assert known.message == "attempt 3"


def test_messages_far_apart_are_not_similar() -> None:
    clock = Clock()
    correlator = Correlator(clock)
    for n in range(20):
        clock.now += 601
        series = correlator.correlate(happened(f"attempt {n}"))
        assert series is not None
        assert series.message == f"attempt {n}"


def test_one_object_may_be_spoken_of_25_times_and_then_every_five_minutes() -> None:
    clock = Clock()
    correlator = Correlator(clock)
    assert all(correlator.correlate(happened("m")) for _ in range(25))
    assert correlator.correlate(happened("m")) is None
    assert correlator.correlate(happened("m", about=Reference("v1", "Pod", "default", "p", "u"))) is not None
    clock.now += 300
    series = correlator.correlate(happened("m"))
    assert series is not None
    assert series.count == 27  # also what was not written has happened
    assert correlator.correlate(happened("m")) is None


def test_its_memory_is_bounded() -> None:
    correlator = Correlator(Clock())
    for n in range(10_000):
        correlator.correlate(happened("m", about=Reference("v1", "Pod", "default", f"p{n}", "")))
    again = correlator.correlate(happened("m", about=Reference("v1", "Pod", "default", "p0", "")))
    assert again is not None
    assert again.count == 1  # forgotten long ago
