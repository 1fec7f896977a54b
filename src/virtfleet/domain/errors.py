"""What goes wrong when a domain is built."""

from __future__ import annotations


class DomainError(ValueError):
    """A VMI that no domain can be made of; the message says what is wrong with which part of it."""
