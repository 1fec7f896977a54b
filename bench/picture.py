"""Curves as an SVG that any browser shows: panels side by side, each with its scale from zero and a line per series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 300, 220, 45
COLOURS = ("#1f6fb4", "#c4572b", "#3c8d40", "#7a4fa3")


@dataclass(frozen=True, slots=True)
class Panel:
    """Some series over the same places."""

    title: str
    series: Mapping[str, Sequence[float]]


def page(places: Sequence[float], what: str, panels: Sequence[Panel]) -> str:
    """`what` is counted by the places."""
    parts = [_panel(places, what, panel, number * WIDTH) for number, panel in enumerate(panels)]
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'


def _panel(places: Sequence[float], what: str, panel: Panel, left: int) -> str:
    most = _round_up(max((value for values in panel.series.values() for value in values), default=0.0))
    last = max(places)
    right, bottom = WIDTH - 15, HEIGHT - MARGIN

    def x(place: float) -> float:
        return MARGIN + (right - MARGIN) * place / last

    def y(value: float) -> float:
        return bottom - (bottom - 30) * value / most

    lines = [
        f'<text x="{MARGIN}" y="16" font-weight="bold">{escape(panel.title)}</text>',
        f'<path d="M{MARGIN},30 V{bottom} H{right}" fill="none" stroke="#888"/>',
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{last:,.0f} {escape(what)}</text>',
    ]
    for value in (0.0, most / 2, most):
        lines.append(f'<text x="{MARGIN - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.4g}</text>')
        lines.append(f'<path d="M{MARGIN},{y(value):.1f} H{right}" stroke="#ddd"/>')
    for number, (name, values) in enumerate(panel.series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in zip(places, values, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{MARGIN + number * 90}" y="{HEIGHT - 8}" fill="{colour}">{escape(name)}</text>')
    inside = "\n".join(lines)
    return f'<g transform="translate({left},0)">\n{inside}\n</g>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    step = 0.001
    while True:
        for factor in (1, 2, 5):
            if value <= step * factor:
                return step * factor
        step *= 10
