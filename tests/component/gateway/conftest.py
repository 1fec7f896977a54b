"""A virt-api for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.gateway.gateway_kit import Kit, gateway
from virtfleet.gateway import guestaddress


@pytest.fixture
async def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    monkeypatch.setattr(guestaddress, "why_not_a_pods", lambda _: "")  # guests answer on the loopback here
    async with gateway(tmp_path, monkeypatch) as made:
        yield made
