"""Settings of all tests: how hard property tests try. `make test-fast` takes the profile `fast`."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("full", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)
settings.load_profile("full")
