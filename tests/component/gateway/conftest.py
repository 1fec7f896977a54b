"""A virt-api for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.gateway.gateway_kit import Kit, gateway


@pytest.fixture
async def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    async with gateway(tmp_path, monkeypatch) as made:
        yield made
