"""How far a migration is, as the VMI's status tells it: seldom, because everybody who follows the VMI hears of it."""

from __future__ import annotations

from virtfleet.kube.resource import Obj
from virtfleet.protocol.messages import MigrationReport

FIRST, PERIOD = 2.0, 5.0  # seconds after which something is told at all, and between two times
_MOST = 1 << 53  # whatever a launcher says, anybody can read it as a number


def figures(report: MigrationReport) -> Obj:
    """`migrationMetrics` of the VMI's `migrationState`."""
    said = {
        "elapsedMilliseconds": report.elapsed_seconds * 1000,
        "totalBytes": report.total_bytes,
        "remainingBytes": report.left_bytes,
        "bytesPerSecond": report.rate,
        "dirtyBytesPerSecond": report.dirty_rate,
        "downtimeMilliseconds": report.downtime_ms,
    }
    return {name: int(max(0, min(value, _MOST))) for name, value in said.items()}


def due(report: MigrationReport, reported: float) -> bool:
    """Whether it is time to tell; `reported` is how long it had taken when that was last done, in seconds."""
    return report.running and report.elapsed_seconds >= (reported + PERIOD if reported else FIRST)
