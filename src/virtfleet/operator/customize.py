"""`spec.customizeComponents.patches`: what an administrator changes about installed objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jsonpatch
import orjson

from virtfleet.kube.resource import Obj

# Lists whose items a strategic merge tells apart by a field; all other lists are replaced.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
}


class PatchError(ValueError):
    """A patch that cannot be applied; the message names it."""


def customized(obj: Obj, patches: Iterable[Mapping[str, Any]]) -> Obj:
    """The object with the patches for its kind and name; `*` means any name."""
    for number, patch in enumerate(patches):
        kind, name = patch.get("resourceType") or "", patch.get("resourceName") or ""
        if kind.lower() == obj["kind"].lower() and name in ("*", obj["metadata"]["name"]):
            try:
                obj = _patched(obj, patch)
            except (orjson.JSONDecodeError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                where = f"spec.customizeComponents.patches[{number}]"
                raise PatchError(f"{where} cannot be applied to {kind} {obj['metadata']['name']}: {error}") from error
    return obj


def _patched(obj: Obj, patch: Mapping[str, Any]) -> Obj:
    change = orjson.loads(patch.get("patch") or "")
    kind = (patch.get("type") or "").lower()
    if kind == "json":
        return dict(jsonpatch.apply_patch(obj, change))
    if kind in ("merge", "strategic"):
        return merged(obj, change, strategic=kind == "strategic")
    raise jsonpatch.InvalidJsonPatch(f"type {kind!r} is not json, merge or strategic")


def merged(old: Mapping[str, Any], change: Mapping[str, Any], *, strategic: bool) -> dict[str, Any]:
    """A merge patch, or a strategic one: null removes, objects are merged, lists replaced or merged by key."""
    result = dict(old)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, dict) else {}, value, strategic=strategic)
        elif strategic and key in _KEYS and isinstance(value, list):
            result[key] = _merged_items(result.get(key) or [], value, _KEYS[key])
        else:
            result[key] = value
    return result


def _merged_items(old: list[dict[str, Any]], change: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    items = {item.get(key): item for item in old}
    for item in change:
        if item.get("$patch") == "delete":
            items.pop(item.get(key), None)
        else:
            items[item.get(key)] = merged(items.get(item.get(key)) or {}, item, strategic=True)
    return list(items.values())
