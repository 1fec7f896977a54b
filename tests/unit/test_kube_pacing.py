"""Pauses grow to a limit and are jittered; a token bucket gives its burst and then its rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from virtfleet.work.pacing import Backoff, TokenBucket


def test_pauses_double_up_to_the_limit_and_begin_again_after_a_reset() -> None:
    backoff = Backoff(1.0, 5.0)
    for full in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert full / 2 <= backoff.next() <= full
    backoff.reset()
    assert backoff.next() <= 1.0


def test_pauses_of_two_clients_differ() -> None:
    a, b = Backoff(1.0, 60.0), Backoff(1.0, 60.0)
    assert [a.next() for _ in range(5)] != [b.next() for _ in range(5)]


@given(st.lists(st.floats(0, 100), max_size=200), st.integers(1, 20))
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(pauses: list[float], burst: int) -> None:
    now = 0.0
    bucket = TokenBucket(0.5, burst, clock=lambda: now)
    taken = 0
    for pause in pauses:
        now += pause
        taken += bucket.take()
        assert taken <= burst + 0.5 * now + 1e-6
