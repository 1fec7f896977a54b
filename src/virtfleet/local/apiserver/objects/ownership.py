"""Server-side apply: who manages which fields of an object, and what follows from that.

An applier sends the fields that it wants and nothing else. They are merged into the object by its schema; those that it
sent last time, sends no more, and nobody else manages, go; one that somebody else manages and that would change is a
conflict. A set of fields is a set of paths, whose steps are written as in Kubernetes' FieldsV1: `f:spec`,
`k:{"name":"c"}`, `v:"x"`. Lists have keys where the schema says so, and are one value elsewhere.

Managers are recorded from the first apply on: an object that nobody applied bears no record, and its writes cost
nothing. What it holds at its first apply is `before-first-apply`'s, as Kubernetes calls it; what a client-side apply
left there is that one's (its annotation tells), so that kubectl can take it over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson

from virtfleet.api.times import seconds
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.schema import SchemaNode

Path = tuple[str, ...]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ANNOTATION = ("f:metadata", "f:annotations", f"f:{LAST_APPLIED}")
_BEFORE, _CLIENT_SIDE = "before-first-apply", "kubectl-client-side-apply"
_ANCIENT, _KUBECTL = "ancient-changes", "kubectl"
_MOST_UPDATERS = 10  # as in Kubernetes: beyond, the oldest become one
LARGEST_RECORD = 1024 * 1024  # bytes in JSON; every applier adds to it
_META = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion")
_NOBODYS = {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _META)}
ANY = SchemaNode(open=True)
_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


class ApplyError(Exception):
    """A configuration that cannot be applied."""


class ConflictError(Exception):
    """Fields of others that an apply would change: each with its manager."""

    def __init__(self, conflicts: list[tuple[Manager, Path]]) -> None:
        super().__init__(_told(conflicts))
        self.conflicts = conflicts


@dataclass(frozen=True, slots=True, order=True)
class Manager:
    """Who writes: an applier is the same whichever version it speaks, an updater is not."""

    name: str
    operation: str  # Apply or Update
    version: str
    subresource: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes it from others."""
        return (self.operation, self.name, self.subresource, "" if self.operation == "Apply" else self.version)

    def __str__(self) -> str:
        of = f" with subresource {_json(self.subresource)}" if self.subresource else ""
        return f"{_json(self.name)}{of}" + (f" using {self.version}" if self.operation == "Update" else "")


@dataclass(frozen=True, slots=True)
class Managed:
    """What one manager has."""

    manager: Manager
    time: str
    fields: frozenset[Path]
    entry: Obj | None = field(default=None, compare=False)  # as it was read; it is never changed


Record = dict[tuple[str, ...], Managed]


def apply(root: SchemaNode, live: Obj, config: Obj, who: Manager, now: str, *, force: bool) -> Obj:
    """`live` (empty for a new object) with the configuration applied, and the record of managers in it."""
    record = read(live) or _first(root, live, now)
    last = record.get(who.identity)
    applied = _kept(fields(root, config), who)
    record[who.identity] = Managed(who, now, applied)
    owned = _named(root, {path for m in record.values() for path in m.fields})
    gone = _named(root, last.fields if last else ()) - owned - _NOBODYS
    merged = _without(root, _merged(root, live, config, ()), gone, owned, ())
    added, removed, changed = differences(root, live, merged)
    touched = _kept(added | changed, who)
    others = [(key, m, m.fields & touched) for key, m in record.items() if key != who.identity]
    conflicts = [(m.manager, path) for _, m, paths in others for path in paths]
    if who.name == _KUBECTL:  # what its client-side apply set is its own
        own = set(fields(root, _last_applied(live)))
        conflicts = [conflict for conflict in conflicts if conflict[1] not in own]
    if conflicts and not force:
        raise ConflictError(sorted(conflicts))
    for key, m, paths in others:
        record[key] = Managed(m.manager, m.time, m.fields - paths - _kept(removed, who))
    if not (added or removed or changed):
        record[who.identity] = Managed(who, last.time if last else "", applied)
    recorded = _with(merged, record)
    if len(orjson.dumps(recorded["metadata"].get("managedFields"))) > LARGEST_RECORD:
        raise ApplyError(f".metadata.managedFields: more than {LARGEST_RECORD} bytes: too many manage too much of it")
    return recorded


def update(root: SchemaNode, live: Obj, obj: Obj, given: Any, who: Manager, now: str) -> Obj:
    """`obj`, by which somebody replaces `live`, with its record; `given` is the one that the writer sent, if any."""
    if given == [{}]:
        return _with(obj, {})  # the way to be rid of a record
    record = (read({"metadata": {"managedFields": given}}) if given else None) or read(live)
    added, removed, changed = differences(root, live, obj)
    mine = _kept(added | changed, who)
    lost = mine | _kept(removed, who)
    for key, m in record.items():
        if m.fields & lost:
            record[key] = Managed(m.manager, m.time, m.fields - lost)
    if mine:
        before = record[who.identity].fields if who.identity in record else frozenset()
        record[who.identity] = Managed(who, now, before | mine)
    return _with(obj, record)


def timeless(obj: Obj) -> Obj:
    """The object without the times in its record: what of it counts as a change."""
    entries = [{**entry, "time": ""} for entry in obj["metadata"].get("managedFields", ())]
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entries}}


# The record


def read(obj: Obj) -> Record:
    """An object's record; empty where it has none, or one that cannot be read."""
    given = obj.get("metadata", {}).get("managedFields")
    return dict(_read(orjson.dumps(given))) if given else {}


@lru_cache(256)  # an object that was applied once is written again and again
def _read(given: bytes) -> Record:
    record: Record = {}
    try:
        for entry in orjson.loads(given):
            words = [entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", "")]
            who, time = Manager(*map(str, words)), entry.get("time") or ""
            if time:
                seconds(time)
            if who.operation not in ("Apply", "Update") or entry["fieldsType"] != "FieldsV1":
                return {}
            record[who.identity] = Managed(who, time, frozenset(_paths(entry["fieldsV1"], ())) - {()}, entry)
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return record


def _paths(tree: Any, path: Path) -> Iterator[Path]:
    if path and not tree:
        yield path
    for step, below in tree.items():
        if step == ".":
            yield path
            continue
        if step[:2] not in ("f:", "k:", "v:") or (step[0] == "k" and not isinstance(orjson.loads(step[2:]), dict)):
            raise ValueError(step)
        yield from _paths(below, (*path, step))


def _with(obj: Obj, record: Record) -> Obj:
    updaters = sorted((m for m in record.values() if m.manager.operation == "Update" and m.fields), key=_age)
    if len(updaters) > _MOST_UPDATERS:
        old = updaters[: len(updaters) - _MOST_UPDATERS + 1]
        ancient = Manager(_ANCIENT, "Update", old[-1].manager.version)
        record = {key: m for key, m in record.items() if m not in old}
        record[ancient.identity] = Managed(ancient, old[-1].time, frozenset().union(*(m.fields for m in old)))
    entries = [_entry(m) for m in sorted(record.values(), key=_age) if m.fields]
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": {**meta, "managedFields": entries} if entries else meta}


def _age(m: Managed) -> tuple[Any, ...]:
    return (m.manager.operation, m.time, m.manager)


def _entry(m: Managed) -> Obj:
    if m.entry is not None:
        return m.entry
    tree: Obj = {}
    for path in sorted(m.fields):
        place = reduce(lambda at, step: at.setdefault(step, {}), path, tree)
        place["."] = {}
    who = m.manager
    entry: Obj = {"manager": who.name, "operation": who.operation, "apiVersion": who.version}
    entry |= {"time": m.time} if m.time else {}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": _bare(tree)}
    return {**entry, "subresource": who.subresource} if who.subresource else entry


def _bare(tree: Obj) -> Obj:
    """A field that has nothing below it is there by itself, without a dot."""
    return {} if set(tree) == {"."} else {step: _bare(below) for step, below in tree.items()}


def _first(root: SchemaNode, live: Obj, now: str) -> Record:
    """The record of an object that is applied for the first time."""
    if not live:
        return {}
    version = live["apiVersion"]
    there = frozenset(_members(root, live, ())) - {()}
    by_client = there & ({*_members(root, _last_applied(live), ()), _ANNOTATION} if _last_applied(live) else set())
    record = {}
    for name, paths in ((_CLIENT_SIDE, by_client), (_BEFORE, there - by_client)):
        who = Manager(name, "Update", version)
        if kept := _kept(paths, who):
            record[who.identity] = Managed(who, now, kept)
    return record


def _last_applied(live: Obj) -> Obj:
    """What the last client-side apply of kubectl said."""
    text = (live.get("metadata", {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        config = orjson.loads(text or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _kept(paths: Iterable[Path], who: Manager) -> frozenset[Path]:
    """Without what nobody manages, and what cannot be written there: the status has a subresource of its own."""
    of_status = who.subresource == "status"
    return frozenset(p for p in paths if p not in _NOBODYS and (p[0] == "f:status") == of_status)


def _told(conflicts: list[tuple[Manager, Path]]) -> str:
    if len(conflicts) == 1:
        return f"Apply failed with 1 conflict: conflict with {conflicts[0][0]}: {shown(conflicts[0][1])}"
    lines: list[str] = []
    for manager, its in groupby(conflicts, itemgetter(0)):
        lines += [f"conflicts with {manager}:", *(f"- {shown(path)}" for _, path in its)]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def shown(path: Path) -> str:
    """`.spec.containers[name="c"].image`."""
    text = ""
    for step in path:
        what, value = step[0], step[2:]
        if what == "k":
            text += f"[{','.join(f'{key}={_json(v)}' for key, v in orjson.loads(value).items())}]"
        else:
            text += f"[={value}]" if what == "v" else f".{value}"
    return text


# Values and their schemas


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _parts(node: SchemaNode, value: Any) -> dict[str, tuple[SchemaNode, Any]] | None:
    """The parts of a value that have managers of their own, by their step; None for what is one value."""
    if isinstance(value, dict):
        if node.map_type == "atomic" or (node.typed and not node.fields and not node.values):
            return None
        return {f"f:{key}": (node.fields.get(key) or node.values or ANY, part) for key, part in value.items()}
    if isinstance(value, list) and node.list_type in ("map", "set"):
        items = node.items or ANY
        parts: dict[str, tuple[SchemaNode, Any]] = {}
        for item in value:
            parts.setdefault(_step(node, item), (items, item))
        return parts
    return None


def _step(node: SchemaNode, item: Any) -> str:
    if keys := _keys(node, item):
        return f"k:{_json(keys)}"
    return f"v:{_json(item)}"


def _keys(node: SchemaNode, item: Any) -> Obj:
    """What tells an item of a list from others; nothing where it has no such thing."""
    given = (node.items.defaults if node.items else {}) | (item if isinstance(item, dict) else {})
    return {key: given[key] for key in node.list_map_keys if given.get(key) is not None}


def check(node: SchemaNode, config: Any, path: Path = ()) -> None:
    """Refuse what cannot be applied: values of other types, items of a list without their key, or with the same."""
    parts = _parts(node, config) or {}
    if not isinstance(config, _TYPES.get(node.type, object) | None):
        raise ApplyError(f"{shown(path)}: expected {node.type}, got {_json(config)[:100]}")
    if isinstance(config, list) and parts:
        if node.list_type == "map" and not all(isinstance(item, dict) and _keys(node, item) for item in config):
            raise ApplyError(f"{shown(path)}: an item lacks its key ({', '.join(node.list_map_keys)})")
        (step, times), *_ = Counter(_step(node, item) for item in config).most_common(1)
        if times > 1:
            raise ApplyError(f"{shown(path)}: duplicate entries for key {shown((step,))}")
    for step, (child, part) in parts.items():
        check(child, part, (*path, step))


def fields(node: SchemaNode, value: Any, path: Path = ()) -> Iterator[Path]:
    """What an applier manages that sends this: values, items, and members of maps."""
    parts = _parts(node, value)
    if parts is None:
        if path:
            yield path
        return
    for step, (child, part) in parts.items():
        below = (*path, step)
        # Built-in kinds know no empty list.
        empty = part is None or part == {} or (part == [] and not child.typed)
        if empty or step[0] != "f" or step[2:] not in node.fields:
            yield below
        yield from fields(child, part, below)


def _members(node: SchemaNode, value: Any, path: Path) -> Iterator[Path]:
    """All that is there, what holds other things included."""
    yield path
    for step, (child, part) in (_parts(node, value) or {}).items():
        yield from _members(child, part, (*path, step))


def differences(root: SchemaNode, old: Obj, new: Obj) -> tuple[set[Path], set[Path], set[Path]]:
    """What is added, removed and changed."""
    added: set[Path] = set()
    removed: set[Path] = set()
    changed: set[Path] = set()

    def compare(node: SchemaNode, old: Any, new: Any, path: Path) -> None:
        if old == new:
            return
        before, after = _parts(node, old), _parts(node, new)
        if before is None or after is None or isinstance(old, list) != isinstance(new, list):
            changed.add(path)
            return
        for step, (child, part) in after.items():
            below = (*path, step)
            if step in before:
                compare(child, before[step][1], part, below)
            else:
                added.update(_members(child, part, below))
        for step, (child, part) in before.items():
            if step not in after:
                removed.update(_members(child, part, (*path, step)))

    compare(root, old, new, ())
    return added, removed, changed


def _merged(node: SchemaNode, live: Any, config: Any, path: Path) -> Any:
    """The live value with what the configuration says of it."""
    wanted, present = _parts(node, config), _parts(node, live)
    if wanted is None or present is None or isinstance(live, list) != isinstance(config, list):
        return config
    both = {
        step: _merged(child, present[step][1], part, (*path, step)) if step in present else part
        for step, (child, part) in wanted.items()
    }
    if isinstance(live, dict):
        return live | {step[2:]: part for step, part in both.items()}
    steps = [_step(node, item) for item in live]
    own = iter([item for step, item in zip(steps, live, strict=True) if step not in both])
    return [both[step] if step in both else next(own) for step in _interleaved(steps, list(wanted))]


def _interleaved(live: list[str], wanted: list[str]) -> list[str]:
    """The applier's order, with what only the server has where it was."""
    merged: list[str] = []
    by_applier, by_server = set(wanted), set(live)
    shared = iter([step for step in wanted if step in by_server])
    following = next(shared, None)
    i = j = 0
    while i < len(live) or j < len(wanted):
        if i < len(live) and live[i] not in by_applier:
            merged.append(live[i])
            i += 1
        elif i < len(live) and live[i] != following:
            i += 1  # has been, or will be, where the applier wants it
        else:
            if wanted[j] == following:
                following = next(shared, None)
            merged.append(wanted[j])
            j += 1
    return merged


def _named(root: SchemaNode, paths: Iterable[Path]) -> set[Path]:
    """The paths, and those of the fields of structs on the way to them."""
    named: set[Path] = set()
    for path in paths:
        named.add(path)
        node: SchemaNode = root
        for end, step in enumerate(path, 1):
            if step[0] == "f":
                if step[2:] in node.fields:
                    named.add(path[:end])
                node = node.fields.get(step[2:]) or node.values or ANY
            else:
                node = node.items or ANY
    return named


def _without(node: SchemaNode, value: Any, gone: set[Path], owned: set[Path], path: Path) -> Any:
    """The value without some of its parts, and without what is empty for that and nobody's."""
    parts = _parts(node, value) if gone else None
    if parts is None:
        return value
    left = {}
    for step, (child, part) in parts.items():
        below = (*path, step)
        if below not in gone:
            kept = _without(child, part, gone, owned, below)
            if kept or kept == part or below in owned:
                left[step] = kept
    if isinstance(value, dict):
        return {step[2:]: part for step, part in left.items()}
    steps = [_step(node, item) for item in value]
    return [left[s] if item == parts[s][1] else item for s, item in zip(steps, value, strict=True) if s in left]
