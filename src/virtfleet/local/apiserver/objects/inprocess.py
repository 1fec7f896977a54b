"""The API for those who live in the server's own process: no TLS, no second encoding, the same rules.

Implements `kube.api.KubeApi` on top of `Operations`, so that the local scheduler and workload controllers are written
like any other component. Requests pass admission but no authorizer: this process holds the store anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from virtfleet.kube.api import Page, Patch, WatchEvent
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.listing import Paging
from virtfleet.local.apiserver.objects.operations import Call, Operations, served
from virtfleet.local.apiserver.objects.selection import Selection, select
from virtfleet.local.apiserver.objects.watching import bookmark
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.serving.streams import BOOKMARK_SECONDS

_decoded: Callable[[bytes], Obj] = orjson.loads


class InProcessApi:
    """KubeApi without a network."""

    def __init__(self, operations: Operations, user: User = MASTER) -> None:
        self._operations = operations
        self._user = user

    async def get(
        self, res: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Obj:
        """One object."""
        return _decoded(self._operations.get(*self._place(res, namespace), name, subresource or ""))

    async def pages(
        self, res: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[Page]:
        """A list, page by page."""
        kind = self._kind(res)
        selection = select(kind, namespace or None, labels, fields)
        paging: Paging | None = Paging(limit)
        while paging is not None:
            listing = await self._operations.list(selection, paging)
            items = [served(kind, record.data) for record in listing.records]
            yield Page(items, str(listing.revision), listing.token)
            paging = Paging(limit, listing.token) if listing.token else None

    async def list(self, res: Resource, namespace: str | None = None, *, labels: str = "") -> list[Obj]:
        """All of them."""
        pages = self.pages(res, namespace, labels=labels, limit=0)
        return [orjson.loads(item) async for page in pages for item in page.items]

    @asynccontextmanager
    async def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """What happens from now on, or from a version."""
        kind = self._kind(res)
        watchers = self._operations.watchers
        watcher = watchers.open(select(kind, namespace or None, labels, fields), resource_version)

        async def events() -> AsyncIterator[WatchEvent]:
            while (batch := await watcher.batch(BOOKMARK_SECONDS if timeout is None else timeout)) is not None:
                for event_type, event in batch:
                    yield WatchEvent(event_type, served(kind, event.data(event_type)))
                if not batch:
                    yield WatchEvent("BOOKMARK", bookmark(kind, self._operations.store.revision))
                    if timeout is not None:
                        return

        try:
            yield events()
        finally:
            watchers.close(watcher)

    async def create(
        self,
        res: Resource,
        obj: Obj,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Make an object, or post to something that stores nothing."""
        kind, where = self._place(res, namespace or obj.get("metadata", {}).get("namespace"))
        call, own = Call(self._user, dry_run), _decoded(orjson.dumps(obj))
        if (res.group, res.plural, subresource or "") in self._operations.posts:
            return await self._operations.post(kind, where, name or "", subresource or "", own, call)
        return _decoded(await self._operations.create(kind, where, own, call))

    async def replace(self, res: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        """Write the whole object."""
        meta, call = obj["metadata"], Call(self._user)
        kind, where = self._place(res, meta.get("namespace"))
        return _decoded(await self._operations.update(kind, where, meta["name"], obj, call, subresource or ""))

    async def patch(
        self,
        res: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        how: Patch = Patch.MERGE,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Change a part."""
        (kind, where), call, body = self._place(res, namespace), Call(self._user, dry_run), orjson.dumps(patch)
        return _decoded(await self._operations.patch(kind, where, name, how, body, call, subresource or ""))

    async def delete(
        self,
        res: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Obj:
        """Delete one object."""
        options = DeleteOptions(grace, propagation, uid, resource_version)
        _, data = await self._operations.delete(*self._place(res, namespace), name, options, Call(self._user))
        return _decoded(data)

    async def delete_collection(self, res: Resource, namespace: str | None = None) -> None:
        """Delete all of them."""
        selection = Selection(self._kind(res), namespace or None)
        await self._operations.delete_collection(selection, DeleteOptions(), Call(self._user))

    def _place(self, res: Resource, namespace: str | None) -> tuple[Kind, str]:
        return self._kind(res), (namespace or "") if res.namespaced else ""

    def _kind(self, res: Resource) -> Kind:
        kind = self._operations.kinds.find(res.group, res.version, res.plural)
        if kind is None:
            raise refusals.no_such_path()
        return kind
