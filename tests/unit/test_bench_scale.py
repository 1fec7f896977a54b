"""The benchmark of scale: its figures, and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from bench import picture
from bench.scale import Step, Usage, draw, figures


def step(count: int, seconds: list[float], cpu: float) -> Step:
    before = (Usage(60, cpu), Usage(100, cpu))
    return Step(count, seconds, Usage(70, cpu + 1), Usage(120, cpu + 2), before, busy=1.5)


def test_figures_are_of_each_step() -> None:
    steps = [step(1000, [0.1] * 940 + [0.9] * 60, 0), step(500, [0.2] * 500, 1)]
    listed = [(f.name, f.value) for f in figures(steps)]
    assert ("created to Running p50, to the 1,000th VMI", 0.1) in listed
    assert ("created to Running p50, to the 1,500th VMI", 0.2) in listed
    assert [value for name, value in listed if name == "  p95"] == [0.9, 0.2]
    assert [value for name, value in listed if name == "  controller's CPU per VMI"] == [1.0, 2.0]


def test_the_picture_is_xml_whatever_the_names_are() -> None:
    assert ET.fromstring(draw([step(1000, [0.1], 0), step(1000, [0.3], 1)])).tag.endswith("svg")
    page = ET.fromstring(picture.page([1, 2], "<VMIs>", [picture.Panel("a & b", {"<x>": [0.0, 0.0]})]))
    lines = [e for e in page.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 1
