"""What a launcher says when it cannot do what it was asked."""

from __future__ import annotations


class Failure(Exception):
    """It could not be done; the message says what is wrong and, where possible, what to do."""
