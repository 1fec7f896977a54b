"""Settings of all tests: how hard property tests try (`make test-fast` takes the profile `fast`); a place to work."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("full", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)
settings.load_profile("full")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose name is short: sockets lie below it."""
    directory = Path(tempfile.mkdtemp(prefix="vfh"))
    yield directory
    shutil.rmtree(directory)
