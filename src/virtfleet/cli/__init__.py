"""The `virtfleet` command."""

from virtfleet.cli.main import main

__all__ = ["main"]
