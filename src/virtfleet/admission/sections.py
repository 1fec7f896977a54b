"""Reading and extending the sections of an object that is a plain dict.

In YAML `cpu:` without a value is null and means the same as no `cpu` at all; both functions read it so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson

_STEP = re.compile(r"[^.\[\]]+")

Obj: TypeAlias = dict[str, Any]
Section: TypeAlias = Mapping[str, Any]


def read(parent: Section, *keys: str) -> Section:
    """The section at the end of `keys`, empty where it is missing."""
    for key in keys:
        parent = parent.get(key) or {}
    return parent


def says(section: Section, path: str) -> bool:
    """Whether the field at a path, `disks[0].errorPolicy`, is there at all.

    The one thing that a view cannot tell of texts and lists: empty and missing are the same to readers, and not to
    KubeVirt's rules.
    """
    value: Any = section
    for step in _STEP.findall(path):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
        if value is None:
            return False
    return True


def extend(parent: Obj, *keys: str) -> Obj:
    """The section at the end of `keys`, made where it is missing."""
    for key in keys:
        child = parent.get(key)
        if child is None:
            child = parent[key] = {}
        parent = child
    return parent


def default(section: Obj, key: str, value: Any) -> None:
    """Set a field that is missing, null or an empty string."""
    if section.get(key) in (None, ""):
        section[key] = value


def copy_of(obj: Section) -> Obj:
    """A copy that shares nothing with the original."""
    copy: Obj = orjson.loads(orjson.dumps(obj))
    return copy
