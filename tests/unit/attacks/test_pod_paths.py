"""Two modules of the handler reach into a Pod: one for its directories, one for its processes."""

from __future__ import annotations

import pytest

from source import modules

KNOWN = {"handler/pods/files.py": "kubernetes.io~", "handler/pods/process.py": "/proc/"}


@pytest.mark.slow
def test_only_two_modules_of_the_handler_know_how_to_reach_into_a_pod() -> None:
    """Nobody else puts such a path together."""
    found = {
        (place, mark)
        for place, module in modules().items()
        if place.startswith("handler/")
        for mark in KNOWN.values()
        for _, text in module.texts
        if mark in text and not text.startswith(("/proc/sys", "/proc/self/fd"))
    }
    assert found == set(KNOWN.items())
