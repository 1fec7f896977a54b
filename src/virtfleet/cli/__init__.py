"""The `virtfleet` command."""

from virtfleet.cli.main import main, plugin

__all__ = ["main", "plugin"]
