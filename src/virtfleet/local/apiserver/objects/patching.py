"""Formats of patches: JSON patch (RFC 6902), JSON merge patch (RFC 7386), strategic merge patch; apply: ownership.py.

All are pure functions from an object and a patch to a new object; neither argument is kept or changed. Strategic merge
is Kubernetes' own format: lists of the kinds' fields merge by a key that the kind's schema names, and directives
(`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/x`, `$setElementOrder/x`) say what plain merging cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import json_patch, refusals

MAX_OPERATIONS = 10_000

MergeKey = Callable[[tuple[str, ...]], tuple[str | None, str | None]]

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def accepted_patches(kind: Kind) -> tuple[Patch, ...]:
    """The formats that apply to a kind; strategic merge needs to know its lists' keys, which custom kinds lack."""
    strategic = () if kind.custom else (Patch.STRATEGIC,)
    return (Patch.JSON, Patch.MERGE, *strategic, Patch.APPLY)


def format_of(kind: Kind, media_type: str) -> Patch:
    """The format that a patch is in; refused if it is none, or does not apply to the kind."""
    how = next((patch for patch in accepted_patches(kind) if patch == media_type), None)
    if how is None:
        raise refusals.unknown_format(accepted_patches(kind))
    return how


def apply(kind: Kind, how: Patch, obj: Obj, patch: Any) -> Obj:
    """`obj` after `patch`."""
    format_of(kind, how)
    if how is Patch.JSON:
        return _json_patch(obj, patch)
    if not isinstance(patch, dict):
        raise refusals.bad_request(f"error decoding patch: a {how.name.lower()} patch is a JSON object")
    if how is Patch.MERGE:
        merged: Obj = merge(obj, patch)
        return merged
    return strategic_merge(obj, patch, kind.schema.merge_key if kind.schema else lambda _: (None, None))


def _json_patch(obj: Obj, patch: Any) -> Obj:
    try:
        operations = json_patch.operations([] if patch is None else patch)
    except json_patch.JsonPatchError as error:
        raise refusals.bad_request(f"error decoding patch: {error}") from error
    if len(operations) > MAX_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise refusals.too_large(why)
    try:
        return json_patch.apply(orjson.loads(orjson.dumps(obj)), operations)
    except json_patch.CopyLimitError as error:
        raise refusals.too_large(str(error)) from error
    except json_patch.JsonPatchError as error:
        why = "the server rejected our request due to an error in our request"
        raise ApiError("Invalid", f"{why}: {error}") from error


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic_merge(obj: Obj, patch: Obj, merge_key: MergeKey, path: tuple[str, ...] = ()) -> Obj:
    """`path` is where in the whole object `obj` is, without list indexes."""
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise refusals.bad_request(f"unknown patch type found: {directive}")
    merged = _retained(obj, patch)
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_PRIMITIVES):
            field = key.removeprefix(_DELETE_PRIMITIVES)
            doomed = _expect_list(key, value)
            if isinstance(merged.get(field), list):
                merged[field] = [item for item in merged[field] if item not in doomed]
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_field(merged.get(key), value, merge_key, (*path, key))
    for key, value in patch.items():
        if key.startswith(_ORDER):
            field = key.removeprefix(_ORDER)
            if isinstance(merged.get(field), list):
                order = _expect_list(key, value)
                merged[field] = _ordered(merged[field], order, obj.get(field), merge_key((*path, field))[1])
    return merged


def _retained(obj: Obj, patch: Obj) -> Obj:
    if _RETAIN not in patch:
        return dict(obj)
    keep = _expect_list(_RETAIN, patch[_RETAIN])
    strangers = [key for key, value in patch.items() if not key.startswith("$") and value is not None]
    if not set(strangers) <= set(keep):
        raise refusals.bad_request(f"{_RETAIN} must contain every field of the patch that stays: {sorted(strangers)}")
    return {key: value for key, value in obj.items() if key in keep}


def _merge_field(current: Any, value: Any, merge_key: MergeKey, path: tuple[str, ...]) -> Any:
    strategy, key = merge_key(path)
    strategies = (strategy or "").split(",")
    if isinstance(value, dict):
        if "replace" in strategies:
            return value
        return strategic_merge(current if isinstance(current, dict) else {}, value, merge_key, path)
    if isinstance(value, list) and "merge" in strategies:
        return _merge_list(current if isinstance(current, list) else [], value, key, merge_key, path)
    return value


def _merge_list(
    current: list[Any], patch: list[Any], key: str | None, merge_key: MergeKey, path: tuple[str, ...]
) -> list[Any]:
    if not any(isinstance(item, dict) for item in patch):
        return current + [item for i, item in enumerate(patch) if item not in current and item not in patch[:i]]
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "replace")]
    if key is None:
        raise refusals.bad_request(f"list {'.'.join(path)} has no merge key")
    merged = list(current)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            shown = orjson.dumps(item).decode()
            raise refusals.bad_request(f"map: {shown} does not contain declared merge key: {key}")
        at = [i for i, other in enumerate(merged) if isinstance(other, dict) and other.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            merged = [other for i, other in enumerate(merged) if i not in at]
        elif at:
            merged[at[0]] = strategic_merge(merged[at[0]], item, merge_key, path)
        else:
            merged.append(strategic_merge({}, item, merge_key, path))
    return merged


def _ordered(items: list[Any], order: list[Any], before: Any, key: str | None) -> list[Any]:
    """The items in the order that the client wants, with those that only the server has in their old places."""

    def identity(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    old = [identity(item) for item in before] if isinstance(before, list) else []
    clients = sorted((i for i in items if identity(i) in wanted), key=lambda i: wanted.index(identity(i)))
    servers = [item for item in items if identity(item) not in wanted]
    result = []
    while clients and servers:
        left, right = identity(servers[0]), identity(clients[0])
        in_front = left in old and right in old and old.index(left) < old.index(right)
        result.append(servers.pop(0) if in_front else clients.pop(0))
    return result + clients + servers


def _expect_list(directive: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise refusals.bad_request(f"{directive} must be a list")
    return value
