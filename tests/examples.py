"""How many examples a property test tries: what it asks for in a full run, a share of that in a fast one."""

from __future__ import annotations

from hypothesis import settings

FULL = 100  # hypothesis' own default, which the profile `full` keeps


def examples(wanted: int) -> int:
    return max(10, wanted * settings().max_examples // FULL)
