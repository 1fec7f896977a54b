"""Garbage collection: objects go when all their owners are gone, and owners wait for them where that was asked for.

The graph is small: for each object its uid and its owners, for each owner the objects that name it. Objects that share
an owner share its record. Whether an owner is really absent is always asked of the API server, because a graph that
lags behind must never delete anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import msgspec

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache, split_key
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_conflict, is_not_found
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers.namespace import one_version_each
from virtfleet.local.controllers.presence import find

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
# Events are many, short-lived and own nothing.
IGNORED = {("", "events"), ("events.k8s.io", "events")}
REMEMBERED = 4096
NEW_KINDS = 2.0  # seconds between looks for kinds that came or went without a CustomResourceDefinition's doing


class Owner(msgspec.Struct, frozen=True, weakref=True):
    """An owner reference."""

    uid: str
    kind: str
    name: str
    group: str
    blocks: bool  # whether the owner's foreground deletion waits for the object


class Item(msgspec.Struct, frozen=True, eq=False):
    """What the graph keeps of an object."""

    uid: str
    deleting: bool
    finalizers: tuple[str, ...]  # of those that are ours
    owners: tuple[Owner, ...]


class _Reference(msgspec.Struct, rename="camel"):
    uid: str
    kind: str
    name: str
    api_version: str
    block_owner_deletion: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None
    finalizers: list[str] | None = None
    owner_references: list[_Reference] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)
_owners: WeakValueDictionary[tuple[str, str, bool], Owner] = WeakValueDictionary()


def decode(data: bytes) -> Item:
    meta = _decoder.decode(data).metadata
    ours = tuple(f for f in meta.finalizers or () if f in (ORPHAN, FOREGROUND))
    owners = tuple(_owner(r) for r in meta.owner_references or ())
    return Item(meta.uid, meta.deletion_timestamp is not None, ours, owners)


def _owner(ref: _Reference) -> Owner:
    blocks = bool(ref.block_owner_deletion)
    group = ref.api_version.rpartition("/")[0]
    owner = Owner(ref.uid, ref.kind, ref.name, group, blocks)
    return _owners.setdefault((ref.uid, ref.api_version, blocks), owner)


class Graph:
    """Which objects name which owner."""

    def __init__(self) -> None:
        self._dependents: dict[str, dict[str, bool]] = {}  # owner's uid -> item's id -> whether it blocks

    def change(self, item_id: str, old: Item | None, new: Item | None) -> None:
        for owner in old.owners if old else ():
            dependents = self._dependents.get(owner.uid, {})
            dependents.pop(item_id, None)
            if not dependents:
                self._dependents.pop(owner.uid, None)
        for owner in new.owners if new else ():
            self._dependents.setdefault(owner.uid, {})[item_id] = owner.blocks

    def dependents(self, uid: str) -> list[str]:
        return list(self._dependents.get(uid, ()))

    def blocking(self, uid: str) -> list[str]:
        return [item_id for item_id, blocks in self._dependents.get(uid, {}).items() if blocks]


class Garbage:
    """The collector. `kinds` are all kinds that are served now; it is asked again and again."""

    def __init__(self, api: KubeApi, crds: Cache[Obj], kinds: Callable[[], Iterable[Resource]]) -> None:
        self._api = api
        self._kinds = kinds
        self._graph = Graph()
        self._caches: dict[str, Cache[Item]] = {}  # by group/plural
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone: dict[str, None] = {}  # uids of owners that were seen to go, also where their kind went with them
        self._kinds_changed = asyncio.Event()
        self._controller = Controller("garbage", self.reconcile, [crds], workers=8)
        crds.on_change(lambda _key, _old, _new: self._kinds_changed.set())

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_kinds(group))
                group.create_task(self._controller.run())
        finally:
            self._tasks.clear()

    # -- the graph

    async def _follow_kinds(self, group: asyncio.TaskGroup) -> None:
        """Watch every kind that there is."""
        while True:
            self._kinds_changed.clear()
            wanted = {_id(r): r for r in one_version_each(self._kinds()) if (r.group, r.plural) not in IGNORED}
            for gone in self._caches.keys() - wanted.keys():
                self._drop(gone)
            for new in wanted.keys() - self._caches.keys():
                self._add(new, wanted[new], group)
            try:
                async with asyncio.timeout(NEW_KINDS):
                    await self._kinds_changed.wait()
            except TimeoutError:
                continue

    def _add(self, kind: str, resource: Resource, group: asyncio.TaskGroup) -> None:
        cache: Cache[Item] = Cache(self._api, resource, decode=decode)

        def changed(key: str, old: Item | None, new: Item | None) -> None:
            self._changed(f"{kind}|{key}", old, new)

        cache.on_change(changed)
        self._caches[kind] = cache
        self._tasks[kind] = group.create_task(cache.run())

    def _drop(self, kind: str) -> None:
        self._tasks.pop(kind).cancel()
        cache = self._caches.pop(kind)
        for key in cache.keys():  # noqa: SIM118 (a cache is no dict)
            self._changed(f"{kind}|{key}", cache.get(key), None)

    def _changed(self, item_id: str, old: Item | None, new: Item | None) -> None:
        self._graph.change(item_id, old, new)
        if new is None:
            assert old is not None
            if dependents := self._graph.dependents(old.uid):
                self._remember(old.uid)
            for dependent in dependents:
                self._controller.queue.add(dependent)
            for owner in old.owners:
                self._look_at_owner(owner, item_id)
        elif new.owners or new.finalizers:
            self._controller.queue.add(item_id)
            for owner in old.owners if old else ():
                if owner not in new.owners:
                    self._look_at_owner(owner, item_id)

    def _remember(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _look_at_owner(self, owner: Owner, item_id: str) -> None:
        """An owner in foreground deletion may be waiting for just this object."""
        found = self._cache_of(owner)
        if found:
            kind, cache = found
            namespace = split_key(item_id.partition("|")[2])[0]
            for key in (f"{namespace}/{owner.name}", owner.name) if namespace else (owner.name,):
                item = cache.get(key)
                if item and item.uid == owner.uid and item.finalizers:
                    self._controller.queue.add(f"{kind}|{key}")

    def _cache_of(self, owner: Owner) -> tuple[str, Cache[Item]] | None:
        for kind, cache in self._caches.items():
            if cache.resource.kind == owner.kind and cache.resource.group == owner.group:
                return kind, cache
        return None

    # -- collecting

    async def reconcile(self, item_id: str) -> float | None:
        """Free or delete the dependents of an owner on its way out; delete an object that has no owner left."""
        kind, _, key = item_id.partition("|")
        cache = self._caches.get(kind)
        item = cache.get(key) if cache else None
        if cache is None or item is None:
            return None
        if item.deleting:
            if item.finalizers:
                await self._all_known()
            if ORPHAN in item.finalizers:
                await self._orphan_dependents(cache.resource, key, item)
            elif FOREGROUND in item.finalizers:
                await self._delete_dependents(cache.resource, key, item)
            return None
        if item.owners:
            await self._judge(cache.resource, item_id, key)
        return None

    async def _all_known(self) -> None:
        """The dependents of an object can be of any kind."""
        for cache in list(self._caches.values()):
            await cache.synced.wait()

    async def _orphan_dependents(self, resource: Resource, key: str, item: Item) -> None:
        for dependent in self._graph.dependents(item.uid):
            await self._drop_references(dependent, {item.uid})
        await self._remove_finalizer(resource, key, item.uid, ORPHAN)

    async def _delete_dependents(self, resource: Resource, key: str, item: Item) -> None:
        dependents = self._graph.dependents(item.uid)
        for dependent in dependents:
            self._controller.queue.add(dependent)
        if not self._graph.blocking(item.uid):
            await self._remove_finalizer(resource, key, item.uid, FOREGROUND)

    async def _judge(self, resource: Resource, item_id: str, key: str) -> None:
        """Delete the object unless one of its owners is there to stay."""
        namespace, name = split_key(key)
        live = await find(self._api, resource, name, namespace)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return
        absent: set[str] = set()
        waiting: set[str] = set()
        solid = False
        for ref in live["metadata"].get("ownerReferences") or ():
            owner = _owner(msgspec.convert(ref, _Reference))
            state = await self._state(owner, namespace)
            if state == "absent":
                absent.add(owner.uid)
            elif state == "waiting":
                waiting.add(owner.uid)
            else:
                solid = True
        if solid:
            if absent or waiting:
                await self._drop_references(item_id, absent | waiting)
            return
        if not absent and not waiting:
            return
        await self._delete(resource, live, foreground=bool(waiting and self._graph.dependents(live["metadata"]["uid"])))

    async def _state(self, owner: Owner, namespace: str | None) -> str:
        """solid, absent, or waiting for its dependents to go. What cannot be told counts as solid."""
        if owner.uid in self._gone:  # a uid never comes back
            return "absent"
        found = self._cache_of(owner)
        if found is None:
            return "solid"  # a kind that is not served: perhaps not any more, perhaps not yet
        _, cache = found
        if cache.resource.namespaced and namespace is None:
            return "solid"  # an object of the cluster cannot belong to one of a namespace; nobody can look it up
        owner_namespace = namespace if cache.resource.namespaced else None
        key = f"{owner_namespace}/{owner.name}" if owner_namespace else owner.name
        known = cache.get(key)
        if known and known.uid == owner.uid:
            return "waiting" if known.deleting and FOREGROUND in known.finalizers else "solid"
        live = await find(self._api, cache.resource, owner.name, owner_namespace)
        if live is None or live["metadata"]["uid"] != owner.uid:
            return "absent"
        meta = live["metadata"]
        waits = meta.get("deletionTimestamp") and FOREGROUND in (meta.get("finalizers") or ())
        return "waiting" if waits else "solid"

    # -- writes

    async def _delete(self, resource: Resource, live: Obj, *, foreground: bool) -> None:
        meta = live["metadata"]
        held = meta.get("finalizers") or ()
        if FOREGROUND in held:
            foreground = True
        propagation = "Orphan" if ORPHAN in held else "Foreground" if foreground else "Background"
        try:
            await self._api.delete(
                resource,
                meta["name"],
                meta.get("namespace"),
                propagation=propagation,
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],  # an object that got a new owner meanwhile stays
            )
        except ApiError as error:
            if not is_not_found(error):
                raise

    async def _drop_references(self, item_id: str, owners: set[str]) -> None:
        kind, _, key = item_id.partition("|")
        cache = self._caches.get(kind)
        if cache is None:
            return
        namespace, name = split_key(key)

        def without(live: Obj) -> Obj:
            kept = [r for r in live["metadata"].get("ownerReferences") or () if r["uid"] not in owners]
            return {"ownerReferences": kept}

        await self._patch_metadata(cache.resource, name, namespace, "", without)

    async def _remove_finalizer(self, resource: Resource, key: str, uid: str, finalizer: str) -> None:
        namespace, name = split_key(key)

        def without(live: Obj) -> Obj:
            return {"finalizers": [f for f in live["metadata"].get("finalizers") or () if f != finalizer]}

        await self._patch_metadata(resource, name, namespace, uid, without)

    async def _patch_metadata(
        self, resource: Resource, name: str, namespace: str | None, uid: str, change: Callable[[Obj], Obj]
    ) -> None:
        """Change lists of the metadata, of the object as it is now and of no later one."""
        while True:
            live = await find(self._api, resource, name, namespace)
            if live is None or (uid and live["metadata"]["uid"] != uid):
                return
            meta = live["metadata"]
            patch = {"metadata": {**change(live), "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
            try:
                await self._api.patch(resource, name, patch, namespace)
                return
            except ApiError as error:
                if not is_conflict(error):
                    if is_not_found(error):
                        return
                    raise


def _id(resource: Resource) -> str:
    return f"{resource.group}/{resource.plural}"
