"""Admission webhooks and the subresource API (virt-api)."""
