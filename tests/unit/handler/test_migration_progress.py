"""What the VMI's status tells of a migration, and how often."""

from __future__ import annotations

import pytest

from virtfleet.handler.migration.progress import FIRST, PERIOD, due, figures
from virtfleet.protocol.messages import MigrationReport


def test_the_figures_are_the_launchers() -> None:
    report = MigrationReport(
        uid="m", elapsed_seconds=2.5, total_bytes=100, left_bytes=40, rate=7, dirty_rate=3, downtime_ms=80
    )
    assert figures(report) == {
        "elapsedMilliseconds": 2500,
        "totalBytes": 100,
        "remainingBytes": 40,
        "bytesPerSecond": 7,
        "dirtyBytesPerSecond": 3,
        "downtimeMilliseconds": 80,
    }


def test_nothing_that_a_launcher_says_is_more_than_a_number() -> None:
    absurd = MigrationReport(elapsed_seconds=1e308, total_bytes=1 << 200, left_bytes=-5, rate=1 << 63, downtime_ms=-1)
    assert all(0 <= value <= 1 << 53 for value in figures(absurd).values())


@pytest.mark.parametrize(
    ("elapsed", "told", "is_due"),
    [
        (FIRST / 2, 0.0, False),
        (FIRST, 0.0, True),
        (FIRST + PERIOD / 2, FIRST, False),
        (FIRST + PERIOD, FIRST, True),
    ],
)
def test_it_is_told_seldom(elapsed: float, told: float, is_due: bool) -> None:
    assert due(MigrationReport(running=True, elapsed_seconds=elapsed), told) is is_due
    assert not due(MigrationReport(running=False, elapsed_seconds=elapsed), told), "the end has other words"
