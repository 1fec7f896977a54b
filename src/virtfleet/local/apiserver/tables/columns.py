"""Printer columns of the built-in kinds, as columns.yaml describes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any

import yaml

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Column
from virtfleet.local.apiserver.tables import jsonpath, shown, shown_pods
from virtfleet.local.apiserver.tables.ages import since


def _at(path: str, default: Any, obj: Obj) -> Any:
    """The value at a path, or the values."""
    values = [value for value in jsonpath.find(path, obj) if value is not None]
    return ",".join(map(str, values)) if len(values) > 1 else next(iter(values), default)


def _age(obj: Obj) -> str:
    return since(obj["metadata"].get("creationTimestamp"))


NAME = Column("Name", format="name", path=partial(_at, ".metadata.name", ""))
AGE = Column("Age", path=_age)


@cache
def builtin_columns() -> dict[str, tuple[Column, ...]]:
    """By the storage name of the kind."""
    text = resources.files(__package__).joinpath("columns.yaml").read_text()
    described = yaml.load(text, Loader=yaml.CSafeLoader)
    return {storage: tuple(map(_column, columns)) for storage, columns in described.items()}


def _column(entry: str | Obj) -> Column:
    if isinstance(entry, str):
        return {"Name": NAME, "Age": AGE}[entry]
    value: Callable[[Obj], Any]
    if "path" in entry:
        value = partial(_at, entry["path"], entry.get("default", ""))
    else:
        value = getattr(shown, entry["shown"], None) or getattr(shown_pods, entry["shown"])
    if "of" in entry:
        value = partial(value, entry["of"])
    priority = 1 if entry.get("wide") else 0
    return Column(entry["name"], entry.get("type", "string"), entry.get("format", ""), priority=priority, path=value)
