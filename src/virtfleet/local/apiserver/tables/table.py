"""The Table form of lists and objects, in which `kubectl get` asks for everything it prints.

Columns of built-in kinds are described in columns.yaml, those of custom kinds in their definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from importlib import resources
from typing import Any

import yaml

from virtfleet.api.names import FINAL
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Column, Kind
from virtfleet.local.apiserver.objects.causes import quoted
from virtfleet.local.apiserver.tables import jsonpath, shown
from virtfleet.local.apiserver.tables.shown import since


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
    path = entry.get("path")
    value = partial(_at, path, entry.get("default", "")) if path else getattr(shown, entry["shown"])
    if "of" in entry:
        value = partial(value, entry["of"])
    priority = 1 if entry.get("wide") else 0
    return Column(entry["name"], entry.get("type", "string"), entry.get("format", ""), priority=priority, path=value)


# What a CRD without columns of its own gets.
CUSTOM_AGE = Column("Age", "date", path=".metadata.creationTimestamp")
_DESCRIPTIONS = {"Name": "Name must be unique within a namespace.", "Age": "Time since the object was created."}


def table(kind: Kind, objects: Iterable[Obj], metadata: Obj, include_object: str = "Metadata") -> Obj:
    """`include_object` says what rides along with each row: None, Metadata or Object."""
    columns = (NAME, *(kind.columns or (CUSTOM_AGE,))) if kind.custom else kind.columns or (NAME, AGE)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [_row(columns, obj, include_object) for obj in objects],
    }


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or _DESCRIPTIONS.get(column.name, ""),
        "priority": column.priority,
    }


def _row(columns: Iterable[Column], obj: Obj, include_object: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [_cell(column, obj) for column in columns]}
    if obj.get("kind") == "Pod" and obj.get("status", {}).get("phase") in FINAL:
        row["conditions"] = [{"type": "Completed", "status": "True", "reason": obj["status"]["phase"]}]
    if include_object == "Metadata":
        shown_as = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        row["object"] = {**shown_as, "metadata": obj["metadata"]}
    elif include_object == "Object":
        row["object"] = obj
    return row


def _cell(column: Column, obj: Obj) -> Any:
    if not isinstance(column.path, str):
        return column.path(obj)
    values = jsonpath.find(column.path, obj)
    if not values or values[0] is None:
        return None
    value = values[0]
    match column.type:
        case "date":
            return since(value) if isinstance(value, str) else "<invalid>"
        case "integer":
            return int(value) if _is_number(value) else None
        case "number":
            return value if _is_number(value) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return " ".join(map(_text, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return quoted(value)
    return str(value)
