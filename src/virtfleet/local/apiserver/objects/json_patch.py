"""JSON patch (RFC 6902), with the liberties that Kubernetes' implementation takes and its clients have come to use.

`replace` may add a member, `test` takes an absent one for null, -1 is the last item of a list, and what is before the
first slash of a path does not matter.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from virtfleet.kube.resource import Obj

MAX_COPIED_BYTES = 3 * 1024 * 1024  # `copy` can double an object with every operation
_INDEX = re.compile(r"-?[0-9]{1,9}")


class JsonPatchError(Exception):
    """A patch that cannot be applied to the object as it is."""


class CopyLimitError(JsonPatchError):
    """A patch that copies too much."""


def operations(patch: Any) -> list[dict[str, Any]]:
    """A decoded patch, if it is a list of operations."""
    if not isinstance(patch, list) or not all(isinstance(operation, dict) for operation in patch):
        raise JsonPatchError("a JSON patch is a list of operations")
    return patch


def apply(obj: Obj, operations: list[dict[str, Any]]) -> Obj:
    """`obj` after the patch; it is changed, and not to be used any more."""
    document: Any = {"": obj}
    copied = 0
    for operation in operations:
        op, place = operation.get("op"), _place(document, operation.get("path"))
        match op:
            case "add":
                _add(*place, operation.get("value"))
            case "replace":
                _get(*place)
                _put(*place, operation.get("value"))
            case "remove":
                _remove(*place)
            case "test":
                if _get(*place) != operation.get("value"):
                    raise JsonPatchError(f"testing value {operation['path']} failed")
            case "copy" | "move":
                source = _place(document, operation.get("from"))
                value = _get(*source)
                if op == "move":
                    _remove(*source)
                else:
                    raw = orjson.dumps(value)
                    copied += len(raw)
                    if copied > MAX_COPIED_BYTES:
                        raise CopyLimitError(f"the copy operations of a JSON patch may add {MAX_COPIED_BYTES} bytes")
                    value = orjson.loads(raw)
                _add(*_place(document, operation["path"]), value)
            case _:
                raise JsonPatchError(f"unexpected kind: {op}")
    match document:
        case {"": dict() as patched}:
            return patched
    raise JsonPatchError("the patch replaces the object by something that is not one")


def _place(document: Any, path: Any) -> tuple[Any, str]:
    """The object or list that a path ends in, and the key there."""
    if not isinstance(path, str):
        raise JsonPatchError("an operation lacks its path")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    container, parts[0] = document, ""
    for part in parts[:-1]:
        container = _get(container, part)
        if not isinstance(container, dict | list):
            raise JsonPatchError(f"doc is missing path: {path}")
    return container, parts[-1]


def _index(key: str, end: int) -> int:
    index = int(key) if _INDEX.fullmatch(key) else end
    if not -end <= index < end:
        raise JsonPatchError(f"unable to access invalid index: {key}")
    return index % end


def _get(container: Any, key: str) -> Any:
    return container[_index(key, len(container))] if isinstance(container, list) else container.get(key)


def _put(container: Any, key: str, value: Any) -> None:
    container[_index(key, len(container)) if isinstance(container, list) else key] = value


def _add(container: Any, key: str, value: Any) -> None:
    if not isinstance(container, list):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        container.insert(_index(key, len(container) + 1), value)


def _remove(container: Any, key: str) -> None:
    if isinstance(container, list):
        del container[_index(key, len(container))]
    elif key in container:
        del container[key]
    else:
        raise JsonPatchError(f"unable to remove nonexistent key: {key}")
