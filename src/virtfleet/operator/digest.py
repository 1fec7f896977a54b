"""Short names for values, by which the operator knows what it has made already. Pure."""

from __future__ import annotations

import hashlib

import orjson


def digest(value: object) -> str:
    """Equal values have equal names."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
