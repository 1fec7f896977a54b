"""Garbage collection: objects go when all their owners are gone, and owners wait for them where that was asked for.

Little is kept: for each object its uid and its owners, for each owner the objects that name it. Whether an owner is
really absent is always asked of the API server, because caches that lag behind must never delete anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from virtfleet.kube.cache import Cache, split_key
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import EVENTS, Resource
from virtfleet.local.controllers.caches import Caches, find
from virtfleet.local.controllers.namespace import one_version_each

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
REMEMBERED = 4096
NEW_KINDS = 2.0  # seconds between looks for kinds that came or went without a CustomResourceDefinition's doing


class Owner(msgspec.Struct, rename="camel", frozen=True):
    """An owner reference. The foreground deletion of an owner waits for objects that block it."""

    uid: str
    kind: str
    name: str
    api_version: str
    block_owner_deletion: bool | None = None


class Item(msgspec.Struct, rename="camel", frozen=True, eq=False):
    """What is kept of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None
    owner_references: list[Owner] | None = None

    @property
    def owners(self) -> list[Owner]:
        return self.owner_references or []

    @property
    def pending(self) -> str:
        """What is to be done with its dependents before it may go: ORPHAN, FOREGROUND, or nothing."""
        return next((f for f in (ORPHAN, FOREGROUND) if f in (self.finalizers or ())), "")


class _Object(msgspec.Struct):
    metadata: Item


_read = msgspec.json.Decoder(_Object).decode


class Garbage:
    """The collector. `kinds` are all kinds that are served now; it is asked again and again."""

    def __init__(self, caches: Caches, kinds: Callable[[], Iterable[Resource]]) -> None:
        self._api, self._kinds = caches.api, kinds
        self._caches: dict[str, Cache[Item]] = {}  # by group/plural
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone: dict[str, None] = {}  # uids of owners that were seen to go, also where their kind went with them
        self._kinds_changed = asyncio.Event()
        self._controller = Controller("garbage", self.reconcile, [caches.crds], workers=8)
        caches.crds.on_change(lambda _key, _old, _new: self._kinds_changed.set())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_kinds(group))
            group.create_task(self._controller.run())

    # -- who names whom

    async def _follow_kinds(self, group: asyncio.TaskGroup) -> None:
        """Watch every kind that there is."""
        while True:
            self._kinds_changed.clear()
            # Events are many, short-lived and own nothing.
            wanted = {r.storage: r for r in one_version_each(self._kinds()) if r.storage != EVENTS.storage}
            for gone in self._caches.keys() - wanted.keys():
                self._drop(gone)
            for new in wanted.keys() - self._caches.keys():
                self._add(new, wanted[new], group)
            with suppress(TimeoutError):
                async with asyncio.timeout(NEW_KINDS):
                    await self._kinds_changed.wait()

    def _add(self, kind: str, resource: Resource, group: asyncio.TaskGroup) -> None:
        owners = {"owner": lambda item: {owner.uid for owner in item.owners}}
        cache: Cache[Item] = Cache(self._api, resource, decode=lambda data: _read(data).metadata, indexes=owners)
        cache.on_change(lambda key, old, new: self._changed(f"{kind}|{key}", old, new))
        self._caches[kind] = cache
        self._tasks[kind] = group.create_task(cache.run())

    def _drop(self, kind: str) -> None:
        self._tasks.pop(kind).cancel()
        cache = self._caches.pop(kind)
        for key in cache.keys():  # noqa: SIM118 (a cache is no dict)
            self._changed(f"{kind}|{key}", cache.get(key), None)

    def _changed(self, item_id: str, old: Item | None, new: Item | None) -> None:
        for owner in old.owners if old else ():
            if new is None or owner not in new.owners:
                self._look_at_owner(owner, item_id)
        if new is not None and (new.owners or new.pending):
            self._controller.queue.add(item_id)
        elif old is not None and new is None and (dependents := self._dependents(old.uid)):
            self._gone[old.uid] = None
            if len(self._gone) > REMEMBERED:
                del self._gone[next(iter(self._gone))]
            for dependent in dependents:
                self._controller.queue.add(dependent)

    def _look_at_owner(self, owner: Owner, item_id: str) -> None:
        """An owner in foreground deletion may be waiting for just this object."""
        cache = self._cache_of(owner)
        if cache is not None:
            kind = cache.resource.storage
            namespace = split_key(item_id.partition("|")[2])[0]
            for key in (f"{namespace}/{owner.name}", owner.name) if namespace else (owner.name,):
                item = cache.get(key)
                if item and item.uid == owner.uid and item.pending:
                    self._controller.queue.add(f"{kind}|{key}")

    def _dependents(self, uid: str, *, blocking: bool = False) -> list[str]:
        """Ids of the objects that name an owner; where asked, of those alone that its foreground deletion waits for."""
        return [
            f"{kind}|{item.namespace}/{item.name}" if item.namespace else f"{kind}|{item.name}"
            for kind, cache in self._caches.items()
            for item in cache.by_index("owner", uid)
            if not blocking or any(owner.uid == uid and owner.block_owner_deletion for owner in item.owners)
        ]

    def _cache_of(self, owner: Owner) -> Cache[Item] | None:
        wanted = (owner.kind, owner.api_version.rpartition("/")[0])
        return next((c for c in self._caches.values() if (c.resource.kind, c.resource.group) == wanted), None)

    # -- collecting

    async def reconcile(self, item_id: str) -> None:
        """Free or delete the dependents of an owner on its way out; delete an object that has no owner left."""
        kind, _, key = item_id.partition("|")
        cache = self._caches.get(kind)
        item = cache.get(key) if cache else None
        if cache is None or item is None:
            return
        if item.deletion_timestamp is None:
            if item.owners:
                await self._judge(cache.resource, item_id, key)
        elif item.pending:
            for other in list(self._caches.values()):  # dependents can be of any kind
                await other.synced.wait()
            for dependent in self._dependents(item.uid):
                if item.pending == ORPHAN:
                    await self._drop_references(dependent, {item.uid})
                else:
                    self._controller.queue.add(dependent)
            if item.pending == ORPHAN or not self._dependents(item.uid, blocking=True):
                await self._strike(cache.resource, key, "finalizers", lambda name: name == item.pending, item.uid)

    async def _judge(self, resource: Resource, item_id: str, key: str) -> None:
        """Delete the object unless one of its owners is there to stay."""
        live = await find(self._api, resource, key)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return
        owners = msgspec.convert(live["metadata"].get("ownerReferences") or [], list[Owner])
        states = {owner.uid: await self._state(owner, split_key(key)[0]) for owner in owners}
        leaving = {uid for uid, state in states.items() if state != "solid"}
        if leaving and len(leaving) < len(states):
            await self._drop_references(item_id, leaving)
        elif leaving:
            meta = live["metadata"]
            held = meta.get("finalizers") or ()
            foreground = FOREGROUND in held or ("waiting" in states.values() and self._dependents(meta["uid"]))
            with ignoring(is_not_found):
                await self._api.delete(
                    resource,
                    meta["name"],
                    meta.get("namespace"),
                    propagation="Orphan" if ORPHAN in held else "Foreground" if foreground else "Background",
                    uid=meta["uid"],
                    resource_version=meta["resourceVersion"],  # an object that got a new owner meanwhile stays
                )

    async def _state(self, owner: Owner, namespace: str | None) -> str:
        """solid, absent, or waiting for its dependents to go. What cannot be told counts as solid."""
        if owner.uid in self._gone:  # a uid never comes back
            return "absent"
        cache = self._cache_of(owner)
        # A kind that is not served: perhaps not any more, perhaps not yet. Or an object of the cluster that says it
        # belongs to one of a namespace: nobody can look that up.
        if cache is None or (cache.resource.namespaced and namespace is None):
            return "solid"
        key = f"{namespace}/{owner.name}" if cache.resource.namespaced else owner.name
        known = cache.get(key)
        if known is None or known.uid != owner.uid:
            live = await find(self._api, cache.resource, key)
            if live is None or live["metadata"]["uid"] != owner.uid:
                return "absent"
            known = msgspec.convert(live["metadata"], Item)
        return "waiting" if known.deletion_timestamp and FOREGROUND in (known.finalizers or ()) else "solid"

    async def _drop_references(self, item_id: str, owners: set[str]) -> None:
        kind, _, key = item_id.partition("|")
        if kind in self._caches:
            resource = self._caches[kind].resource
            await self._strike(resource, key, "ownerReferences", lambda reference: reference["uid"] in owners)

    async def _strike(
        self, resource: Resource, key: str, field: str, unwanted: Callable[[Any], bool], uid: str = ""
    ) -> None:
        """Take entries out of a list in the metadata, of the object as it is now and of no later one."""
        namespace, name = split_key(key)
        while (live := await find(self._api, resource, key)) is not None:
            meta = live["metadata"]
            if uid and meta["uid"] != uid:
                return
            kept = [entry for entry in meta.get(field) or () if not unwanted(entry)]
            patch = {"metadata": {field: kept, "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
            with ignoring(is_conflict, is_not_found):
                await self._api.patch(resource, name, patch, namespace)
                return
