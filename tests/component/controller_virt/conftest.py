"""A simulated cluster with a running virt-controller, one for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from virt_plane import Plane, plane

from virtfleet.controller import instance


@pytest.fixture
async def virt(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A VMI says without delay that its Pod is there and does not run yet."""
    monkeypatch.setattr(instance, "PROMPT", 0.0)
