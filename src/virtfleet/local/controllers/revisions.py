"""Names for versions of a pod template: short hashes that go into labels and into names of objects."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

_NAME_LIMIT = 253


def template_hash(template: Any, collisions: int | None) -> str:
    """A name for the template. `collisions` counts how often another template had the same name already."""
    data = orjson.dumps([template, collisions or 0], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=5).hexdigest()


def named(owner: str, revision: str) -> str:
    """The name of the object that stands for one revision of its owner."""
    return f"{owner[: _NAME_LIMIT - 1 - len(revision)]}-{revision}"
