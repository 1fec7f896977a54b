"""What component tests share: an API server in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from component.handler_kit import api_server
from virtfleet.local.apiserver.objects.inprocess import InProcessApi


@pytest.fixture
async def api(place: Path) -> AsyncIterator[InProcessApi]:
    async with api_server(place) as api:
        yield api


@pytest.fixture
def user_faults() -> Iterator[None]:
    """User faults for ordinary users, which post-copy needs; the machine has afterwards what it had before."""
    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    before = setting.read_text()
    setting.write_text("1")
    yield
    setting.write_text(before)
