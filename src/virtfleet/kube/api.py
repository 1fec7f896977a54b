"""The API as its users call it: one interface, two implementations.

`kube.client.Client` speaks HTTPS to any Kubernetes; `local.inprocess.InProcessApi` calls the local API server's own
functions in the same process, so that the local scheduler and workload controllers pay for neither TLS nor a second
encoding. Caches, controllers, elections and recorders take a `KubeApi` and do not know which one they have.

Objects go in as dicts. Reads that can be many (pages, watches) come out as raw JSON bytes, because a cache may keep
only a small projection of each object and must not pay for decoding the rest.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

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


class KubeApi(ABC):
    """What every component may do with the API server."""

    async def get(
        self, res: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> Obj:
        return await self._ask("get", res, namespace, name, subresource)

    @abstractmethod
    def pages(
        self, res: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[Page]: ...

    async def list(self, res: Resource, namespace: str | None = None, *, labels: str = "") -> list[Obj]:
        """Every object, all pages, with kind and apiVersion set."""
        objects: list[Obj]
        objects, _ = await read_all(self, res, namespace, labels=labels, read=orjson.loads)
        for obj in objects:
            obj.setdefault("apiVersion", res.api_version)
            obj.setdefault("kind", res.kind)
        return objects

    @abstractmethod
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
        namespace = namespace or obj.get("metadata", {}).get("namespace")
        return await self._ask("create", res, namespace, name, subresource, obj, dry_run=dry_run)

    async def replace(self, res: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        meta = obj["metadata"]
        return await self._ask("update", res, meta.get("namespace"), meta["name"], subresource, obj)

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
        return await self._ask("patch", res, namespace, name, subresource, patch, how=how, dry_run=dry_run)

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
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation:
            options["propagationPolicy"] = propagation
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = given
        return await self._ask("delete", res, namespace, name, None, options)

    @abstractmethod
    async def delete_collection(self, res: Resource, namespace: str | None = None) -> None: ...

    @abstractmethod
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
        """One request about one object. `body` is what is sent with it, a patch of the kind that `how` says."""


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
