"""Names for versions of a pod template: short hashes that go into labels and into names of objects."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

# What people do not mistake for words or for each other; Kubernetes' own alphabet for such names.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LENGTH = 10
_NAME_LIMIT = 253


def template_hash(template: Any, collisions: int | None) -> str:
    """A name for the template. `collisions` counts how often another template had the same name already."""
    data = orjson.dumps([template, collisions or 0], option=orjson.OPT_SORT_KEYS)
    number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
    letters = []
    for _ in range(_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def named(owner: str, revision: str) -> str:
    """The name of the object that stands for one revision of its owner."""
    return f"{owner[: _NAME_LIMIT - 1 - len(revision)]}-{revision}"
