"""Where the reference material lies that some tests compare with; they are skipped where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def reference(path: str) -> Path:
    """A path of the reference material, or a skipped test."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"the reference {path} is not here")
    return found
