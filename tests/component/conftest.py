"""What component tests share: an API server in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.handler_kit import api_server
from virtfleet.local.apiserver.objects.inprocess import InProcessApi


@pytest.fixture
async def api(place: Path) -> AsyncIterator[InProcessApi]:
    async with api_server(place) as api:
        yield api
