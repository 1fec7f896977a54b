"""Watches: every committed change, in order, to everyone who selected the object before or after it.

Changes reach watchers synchronously with the commit, so a watcher whose queue is drained has seen everything up to the
store's revision: that is what bookmarks say. What several watchers need of one change (its labels, its encoded form)
is worked out once. A watcher that does not keep up is ended rather than buffered for; its client resumes from the last
resourceVersion it saw.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import orjson

from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.listing import parse_version
from virtfleet.local.apiserver.objects.selection import Facts, Selection
from virtfleet.local.apiserver.objects.store import Change, Record, Store

if TYPE_CHECKING:
    from virtfleet.local.apiserver.tables.forms import Form

QUEUE_LIMIT = 5000  # events that wait for one watcher; they are shared, so this costs references only
BATCH = 200
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Event:
    """One change as watchers see it."""

    __slots__ = ("_after", "_before", "_encoded", "change")

    def __init__(self, change: Change) -> None:
        self.change = change
        self._after = Facts(change.record)
        self._before = Facts(change.previous) if change.previous is not None else None
        self._encoded: dict[tuple[str, ...], bytes] = {}

    def type_for(self, selection: Selection) -> str | None:
        """What happened from the point of view of a selection that an object may enter and leave."""
        before = self._before is not None and selection.matches(self._before)
        if self.change.type != "DELETED" and selection.matches(self._after):
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None

    def data(self, event_type: str) -> bytes:
        """The object of the event, in the version it is stored in."""
        if event_type == "DELETED" and self.change.type != "DELETED" and self.change.previous is not None:
            # It left the selection: its state there, with the revision at which it left.
            obj = orjson.loads(self.change.previous.data)
            obj["metadata"]["resourceVersion"] = str(self.change.record.revision)
            return orjson.dumps(obj)
        return self.change.record.data

    def encoded(self, event_type: str, form: Form) -> bytes:
        """The event as it is sent in a form."""
        key = (event_type, *form.key)
        line = self._encoded.get(key)
        if line is None:
            line = self._encoded[key] = form.event(event_type, self.data(event_type))
        return line


class Watcher:
    """One watch. `batch` gives what is there, waiting if nothing is; None when the watch has ended."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.initial: Iterator[tuple[str, Event]] = iter(())
        self.ended = False
        self.on_overflow: Callable[[], None] = lambda: None
        self._queue: deque[tuple[str, Event]] = deque()
        self._wake: asyncio.Future[None] | None = None

    def offer(self, event: Event) -> None:
        """Queue the event if it is one of the selection."""
        event_type = event.type_for(self.selection)
        if event_type is None:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self.end()
            self.on_overflow()
            return
        self._queue.append((event_type, event))
        self._awake()

    def end(self) -> None:
        """Give nothing any more."""
        self.ended = True
        self._queue.clear()
        self.initial = iter(())
        self._awake()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def batch(self, timeout: float) -> list[tuple[str, Event]] | None:
        """Events, at least one; an empty list after `timeout` seconds without any."""
        if initial := list(islice(self.initial, BATCH)):
            return initial
        if not self._queue and not self.ended:
            self._wake = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._wake], timeout=timeout)
        if self.ended:
            return None
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]


class Watchers:
    """All watches of the server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_storage: dict[str, set[Watcher]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_storage.values()))

    def open(self, selection: Selection, resource_version: str = "", initial_events: bool | None = None) -> Watcher:
        """`initial_events`: True also marks the end of the initial state; None follows the resourceVersion as always:
        without one, the watch begins with the present state."""
        version = parse_version(resource_version, refusals.bad_version)
        if version > self._store.revision:
            # Nobody was ever given this version: it is of another store, and its client has to start over.
            raise ApiError("Expired", f"too large resource version: {version}, current: {self._store.revision}")
        watcher = Watcher(selection)
        if initial_events or (initial_events is None and not version):
            records = list(self._store.scan(selection.kind.storage, selection.namespace))
            watcher.initial = _present(selection, records, self._store.revision if initial_events else None)
        elif version:
            watcher.initial = _history(selection, self._store.since(selection.kind.storage, version))
        storage = selection.kind.storage
        if storage not in self._by_storage:
            self._by_storage[storage] = set()
            self._store.listen(storage, self._changed)
        self._by_storage[storage].add(watcher)
        return watcher

    def close(self, watcher: Watcher) -> None:
        """End one watch, and forget it."""
        watcher.end()
        self._by_storage[watcher.selection.kind.storage].discard(watcher)

    def end(self) -> None:
        """End all watches."""
        for watchers in self._by_storage.values():
            for watcher in watchers:
                watcher.end()

    def _changed(self, change: Change) -> None:
        if watchers := self._by_storage[change.record.storage]:
            event = Event(change)
            for watcher in watchers:
                watcher.offer(event)


def bookmark(kind: Kind, revision: int, annotations: dict[str, str] | None = None) -> bytes:
    """The object of a BOOKMARK event."""
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if annotations:
        metadata["annotations"] = annotations
    resource = kind.resource
    return orjson.dumps({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata})


def _present(selection: Selection, records: Iterable[Record], end: int | None) -> Iterator[tuple[str, Event]]:
    for record in records:
        if selection.matches(Facts(record)):
            yield "ADDED", Event(Change("ADDED", record, None))
    if end is not None:
        data = bookmark(selection.kind, end, {INITIAL_EVENTS_END: "true"})
        yield "BOOKMARK", Event(Change("BOOKMARK", Record(selection.kind.storage, "", "", end, data), None))


def _history(selection: Selection, changes: Iterable[Change]) -> Iterator[tuple[str, Event]]:
    for change in changes:
        event = Event(change)
        if (event_type := event.type_for(selection)) is not None:
            yield event_type, event
