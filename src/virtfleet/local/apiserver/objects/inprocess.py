"""The API for those who live in the server's own process: no TLS, no second encoding, the same rules.

`kube.api.KubeApi` on top of `Operations`, so that the local scheduler and workload controllers are written
like any other component. Requests pass admission but no authorizer: this process holds the store anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from virtfleet.kube.api import KubeApi, Page, Patch, WatchEvent
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.deletion import DeleteOptions, parse_options
from virtfleet.local.apiserver.objects.listing import Paging
from virtfleet.local.apiserver.objects.operations import Call, Operations, served
from virtfleet.local.apiserver.objects.selection import Selection, select
from virtfleet.local.apiserver.objects.watching import bookmark
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.serving.streams import BOOKMARK_SECONDS


class InProcessApi(KubeApi):
    """KubeApi without a network."""

    def __init__(self, operations: Operations, user: User = MASTER) -> None:
        self._operations = operations
        self._user = user

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

    async def _ask(
        self,
        verb: str,
        res: Resource,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
        body: Any = None,
        *,
        how: Patch | None = None,
        dry_run: bool = False,
    ) -> Obj:
        kind, call, operations = self._kind(res), Call(self._user, dry_run), self._operations
        where, name, part = (namespace or "") if res.namespaced else "", name or "", subresource or ""
        sent = orjson.dumps(body)  # what the caller keeps stays as it is
        match verb:
            case "get":
                data = operations.get(kind, where, name, part)
            case "create" if (res.group, res.plural, part) in operations.posts:
                return await operations.post(kind, where, name, part, orjson.loads(sent), call)
            case "create":
                data = await operations.create(kind, where, orjson.loads(sent), call)
            case "update":
                data = await operations.update(kind, where, name, body, call, part)
            case "patch":
                data = await operations.patch(kind, where, name, how or Patch.MERGE, sent, call, part)
            case _:
                options, _ = parse_options(body, {})
                _, data = await operations.delete(kind, where, name, options, call)
        answer: Obj = orjson.loads(data)
        return answer

    async def delete_collection(self, res: Resource, namespace: str | None = None) -> None:
        """Delete all of them."""
        selection = Selection(self._kind(res), namespace or None)
        await self._operations.delete_collection(selection, DeleteOptions(), Call(self._user))

    def _kind(self, res: Resource) -> Kind:
        kind = self._operations.kinds.find(res.group, res.version, res.plural)
        if kind is None:
            raise refusals.no_such_path()
        return kind
