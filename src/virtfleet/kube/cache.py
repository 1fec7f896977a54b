"""A local copy of a collection that follows the server: list once, then watch.

A cache keeps whatever `decode` makes of an object's JSON, so that a controller which needs four fields of a pod does
not hold the other four hundred. It goes on serving its last state while the API server is away, and catches up
afterwards: from where it was if the server still knows that point, else with a new list that also finds what was
deleted meanwhile.

**Resource versions** are compared as numbers. Kubernetes long called them opaque, but every server that matters counts
revisions of one store, and without an order an object that this process has just written could not be told from an
older one that the watch still delivers. Where a server sends anything else, events count in the order of their arrival
and `observe` does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import orjson

from virtfleet.api.selectors import parse_label_selector
from virtfleet.kube.api import KubeApi, Patch, WatchEvent, read_all
from virtfleet.kube.errors import SILENT, ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import Obj, Resource
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

T = TypeVar("T")

Handler = Callable[[str, T | None, T | None], None]
Index = Callable[[T], Iterable[str]]

# After these answers the point that was reached is still good; after any other, list again.
RESUMABLE = (429, 503)
# The server ends a watch after a time of this range, so that watchers spread over its replicas again.
WATCH_TIME = (300.0, 600.0)


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")

    @property
    def key(self) -> str:
        return _key(self.namespace, self.name)


class _Head(msgspec.Struct):
    metadata: _Meta


_head = msgspec.json.Decoder(_Head)


@dataclass(slots=True)
class _Entry(Generic[T]):
    revision: int
    uid: str
    value: T


def key_of(obj: Obj) -> str:
    """`namespace/name`, or `name` alone where there is no namespace."""
    return _key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def split_key(key: str) -> tuple[str | None, str]:
    """The namespace, if any, and the name."""
    namespace, _, name = key.rpartition("/")
    return namespace or None, name


def _key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


class Cache(Generic[T]):
    """`run()` it as a task; `synced` is set once the first list is in. What it returns belongs to it: do not change it.

    `decode` gets the JSON of one object (in which kind and apiVersion may be absent) and returns what is kept of it. An
    object that it cannot read keeps its last readable state, or stays out: one bad object must not blind a controller
    to all others, and must not look deleted either.

    `indexes` map a name to a function from a value to the strings under which `by_index` finds it.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        decode: Callable[[bytes], T],
        indexes: Mapping[str, Index[T]] | None = None,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._labels = labels
        self._selector = parse_label_selector(labels)
        self._fields = fields
        self._decode = decode
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, T]]] = {name: {} for name in self._index_functions}
        self._entries: dict[str, _Entry[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._position = ""  # the resourceVersion to watch from; "" when a list is due
        self._revision = 0  # every change up to here has been seen
        self._lost: float | None = None  # since when the server does not answer

    # -- reading

    def get(self, key: str) -> T | None:
        entry = self._entries.get(key)
        return entry.value if entry else None

    def keys(self) -> list[str]:
        return [*self._entries]

    def by_index(self, index: str, value: str) -> list[T]:
        return [*self._indexes[index].get(value, {}).values()]

    def list(self) -> list[T]:
        return [entry.value for entry in self._entries.values()]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def away(self) -> float:
        """For how many seconds the server has not answered; none while it is followed."""
        return 0.0 if self._lost is None else time.monotonic() - self._lost

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler(key, old, new)` on every change: old is None for an addition, new for a deletion.

        What is here already is told at once as additions. An object that was deleted and made again under its name is
        told as a deletion and an addition, also where only a list shows it.
        """
        self._handlers.append(handler)
        for key, entry in self._entries.items():
            self._tell(handler, key, None, entry.value)

    def observe(self, obj: Obj) -> None:
        """Take in the server's answer to a write of our own, so that the next read here sees it.

        Only what is ahead of the watch is taken: anything else the watch has shown already, or its deletion. Older
        events do not roll it back.
        """
        meta = obj["metadata"]
        key = key_of(obj)
        revision = _number(meta.get("resourceVersion", ""))
        known = key in self._entries
        if revision <= self._revision or (self._namespace and meta.get("namespace") != self._namespace):
            return
        # Whether an object fits a field selector only the server knows; the watch will say it.
        if not known and (self._fields or not self._selector.matches(meta.get("labels"))):
            return
        self._put(key, self._entry(key, revision, meta.get("uid", ""), orjson.dumps(obj)))

    # -- asking the server itself, and writing: the next read here sees it

    def taken(self, obj: Obj) -> T:
        """What is kept of an answer of the server's."""
        self.observe(obj)
        return self._decode(orjson.dumps(obj))

    async def fetch(self, key: str) -> T:
        namespace, name = split_key(key)
        return self.taken(await self._api.get(self.resource, name, namespace))

    async def listed(self, namespace: str, labels: str = "") -> Sequence[T]:
        """Those of one namespace; with `labels`, which are to name those of the cache too, fewer of them."""
        objects = await self._api.list(self.resource, namespace, labels=labels or self._labels)
        return [self.taken(obj) for obj in objects]

    async def create(self, obj: Obj, namespace: str | None = None) -> T:
        return self.taken(await self._api.create(self.resource, obj, namespace))

    async def change(self, key: str, patch: Obj, *, how: Patch = Patch.MERGE, subresource: str | None = None) -> None:
        namespace, name = split_key(key)
        self.observe(await self._api.patch(self.resource, name, patch, namespace, how=how, subresource=subresource))

    async def remove(
        self, key: str, uid: str, *, grace: int | None = None, resource_version: str | None = None
    ) -> Obj | None:
        """Delete this very object. The answer is the server's, None where it was gone, or another has its name."""
        namespace, name = split_key(key)
        with ignoring(is_not_found, is_conflict):
            answer = await self._api.delete(
                self.resource, name, namespace, grace=grace, uid=uid, resource_version=resource_version
            )
            if "deletionTimestamp" in answer.get("metadata", {}):  # else it is gone at once, as the answer says
                self.observe(answer)
            return answer
        return None

    # -- following the server

    async def run(self) -> None:
        """Follow the server until cancelled."""
        backoff = Backoff(0.2, 15.0)
        while True:
            try:
                if not self._position:
                    await self._list()
                await self._watch(backoff)
                pause = backoff.next()
            except ApiError as error:
                self._lost = time.monotonic() if self._lost is None else self._lost
                if error.code not in RESUMABLE:
                    self._position = ""
                pause = backoff.next()
                level = logging.INFO if error.reason == SILENT else logging.WARNING
                logger.log(level, "cache of %s: %s; trying again in %.1f s", self.resource, error.message, pause)
            await asyncio.sleep(pause)

    async def _list(self) -> None:
        # A consistent list, not one from a server's own cache, so that it is never older than what is known here.
        items, version = await read_all(
            self._api, self.resource, self._namespace, labels=self._labels, fields=self._fields, read=self._item
        )
        revision = _number(version)
        if revision < self._revision:
            # The server has another history now (restored, or made anew): the numbers known here mean nothing in it.
            logger.warning("cache of %s: the server went back to %s; starting over", self.resource, version)
            self._revision = 0
            for known in self._entries.values():
                known.revision = 0
            return await self._list()
        for key, entry in items:
            self._put(key, entry)
        # An entry that is ahead of the list was written by us after it.
        listed = {key for key, _ in items}
        for key in [k for k, known in self._entries.items() if k not in listed and known.revision <= revision]:
            self._remove(key)
        self._position, self._revision = version, revision
        self.synced.set()

    async def _watch(self, backoff: Backoff) -> None:
        async with self._api.watch(
            self.resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            resource_version=self._position,
            timeout=random.uniform(*WATCH_TIME),
        ) as events:
            self._lost = None
            async for event in events:
                self._follow(event)
                backoff.reset()

    def _follow(self, event: WatchEvent) -> None:
        meta = _read(event.object, named=event.type != "BOOKMARK")
        revision = _number(meta.version)
        have = self._entries.get(meta.key)
        if event.type == "DELETED":
            if have and (not revision or have.revision <= revision):
                self._remove(meta.key)
        elif event.type != "BOOKMARK":
            self._put(meta.key, self._entry(meta.key, revision, meta.uid, event.object))
        self._position, self._revision = meta.version, max(self._revision, revision)

    # -- keeping entries

    def _item(self, data: bytes) -> tuple[str, _Entry[T] | None]:
        meta = _read(data)
        return meta.key, self._entry(meta.key, _number(meta.version), meta.uid, data)

    def _entry(self, key: str, revision: int, uid: str, data: bytes) -> _Entry[T] | None:
        """What is to be kept of an object: the entry that is here if it is the same, None if it cannot be read."""
        have = self._entries.get(key)
        if have and revision and have.revision == revision and have.uid == uid:
            return have
        try:
            return _Entry(revision, uid, self._decode(data))
        except Exception as error:
            logger.error("cache of %s: cannot read %s, keeping its last state: %s", self.resource, key, error)
            return None

    def _put(self, key: str, entry: _Entry[T] | None) -> None:
        have = self._entries.get(key)
        if entry is None or (have and entry.revision and entry.revision <= have.revision):
            return
        if have and have.uid != entry.uid:
            self._remove(key)
            have = None
        self._entries[key] = entry
        self._changed(key, have.value if have else None, entry.value)

    def _remove(self, key: str) -> None:
        self._changed(key, self._entries.pop(key).value, None)

    def _changed(self, key: str, old: T | None, new: T | None) -> None:
        for name, function in self._index_functions.items():
            index = self._indexes[name]
            if old is not None:
                for value in function(old):
                    index[value].pop(key, None)
                    if not index[value]:
                        del index[value]
            if new is not None:
                for value in function(new):
                    index.setdefault(value, {})[key] = new
        for handler in self._handlers:
            self._tell(handler, key, old, new)

    def _tell(self, handler: Handler[T], key: str, old: T | None, new: T | None) -> None:
        try:
            handler(key, old, new)
        except Exception:
            logger.exception("cache of %s: a handler failed on %s", self.resource, key)


def _read(data: bytes, *, named: bool = True) -> _Meta:
    try:
        meta = _head.decode(data).metadata
        if not (meta.name if named else meta.version):
            raise msgspec.ValidationError("it has no name" if named else "it has no version")
        return meta
    except msgspec.MsgspecError as error:
        # A change that cannot even be named is a gap in what is known: the error leads to a new list.
        raise ApiError("InternalError", f"not an object: {data[:80]!r}: {error}") from error
