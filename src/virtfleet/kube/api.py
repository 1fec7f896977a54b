"""The API as its users call it: one protocol, two implementations.

`kube.client.Client` speaks HTTPS to any Kubernetes; `local.inprocess.InProcessApi` calls the local API server's own
functions in the same process, so that the local scheduler and workload controllers pay for neither TLS nor a second
encoding. Caches, controllers, elections and recorders take a `KubeApi` and do not know which one they have.

Objects go in as dicts. Reads that can be many (pages, watches) come out as raw JSON bytes, because a cache may keep
only a small projection of each object and must not pay for decoding the rest.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from virtfleet.kube.errors import ApiError, is_gone
from virtfleet.kube.resource import Obj, Resource

T = TypeVar("T")


class Patch(enum.StrEnum):
    """The content types of patches."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `items` are the objects' raw JSON; kind and apiVersion may be absent in them."""

    items: list[bytes]
    resource_version: str
    more: str  # the continue token, "" on the last page


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. `type` is ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised as ApiError instead."""

    type: str
    object: bytes


class KubeApi(Protocol):
    """What every component may do with the API server."""

    async def get(
        self, res: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Obj: ...

    def pages(
        self, res: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[Page]: ...

    async def list(self, res: Resource, namespace: str | None = None, *, labels: str = "") -> list[Obj]:
        """Every object, all pages, with kind and apiVersion set."""
        ...

    def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Changes after `resource_version`, bookmarks included. Ends quietly when the server closes it."""
        ...

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
        """Create an object; with `name` and `subresource`, post to a subresource (binding, eviction, token)."""
        ...

    async def replace(self, res: Resource, obj: Obj, *, subresource: str | None = None) -> Obj: ...

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
    ) -> Obj: ...

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
    ) -> Obj: ...

    async def delete_collection(self, res: Resource, namespace: str | None = None) -> None: ...


async def read_all(
    api: KubeApi,
    res: Resource,
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    read: Callable[[bytes], T],
) -> tuple[list[T], str]:
    """Every object through `read`, page by page, and the resourceVersion of the list.

    A continue token lives for minutes only, so a list that is read slowly can expire in the middle (410). It then
    starts again without a limit: one answer cannot expire.
    """
    limit = 500
    while True:
        items: list[T] = []
        version = ""
        try:
            async for page in api.pages(res, namespace, labels=labels, fields=fields, limit=limit):
                items += map(read, page.items)
                version = page.resource_version
            return items, version
        except ApiError as error:
            if not is_gone(error) or not limit:
                raise
            limit = 0
