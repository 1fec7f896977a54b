"""The one domain beside a launcher: its beginning, its changes, its end, and what can be asked of it meanwhile."""
