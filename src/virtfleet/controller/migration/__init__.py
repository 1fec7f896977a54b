"""Migrations: from a request to a VM that runs on another node, or to the reason why it does not."""
