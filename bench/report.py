"""How a benchmark says what it found: a figure, what it is compared with in the same run, and what we aim at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `baseline` was measured in the same run; `reference` is somebody else's published figure."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""
    aim: str = ""
    reference: str = ""
    problem: str = ""
    """What is wrong with the figure; a run with a problem fails."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None


def as_data(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    return [{**asdict(f), "ratio": f.ratio} for f in figures]


def as_text(title: str, figures: Iterable[Figure]) -> str:
    """A table of one benchmark."""
    rows = [["", "value", "unit", "ratio", "aim", "reference"]]
    for f in figures:
        ratio = f"{f.ratio:.2f} of {f.baseline_name} ({_number(f.baseline or 0)})" if f.ratio is not None else ""
        aim = f"{f.aim}: {f.problem}" if f.problem else f.aim
        rows.append([f.name, _number(f.value), f.unit, ratio, aim, f.reference])
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join([f"== {title}", *lines, ""])


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
