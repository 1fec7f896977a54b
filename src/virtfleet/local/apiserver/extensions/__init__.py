"""Servers that have a say: webhooks and aggregated APIs."""
