"""Caches with writes that the very next read sees.

A controller that acts on a cache which does not show its last write yet would create the same pod twice. Kubernetes
keeps per-owner "expectations" against that; here every answer to a write goes into the cache at once (`observe`): a
created pod is there, a deleted one is terminating. So there is nothing to wait for, nothing that can wait forever, and
after a restart the first list is complete by itself.
"""

from __future__ import annotations

from typing import Any, TypeVar

from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache, key_of, split_key
from virtfleet.kube.errors import ignoring, is_conflict, is_not_found
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import Obj, Resource

T = TypeVar("T")


class Collection(Cache[T]):
    """The objects of one kind. That one is gone, or has made room for another of its name, is no failure."""

    async def create(self, obj: Obj, namespace: str | None = None) -> Obj:
        answer = await self._api.create(self.resource, obj, namespace)
        self.observe(answer)
        return answer

    async def find(self, key: str) -> Obj | None:
        """The object as the server has it now, or None."""
        return await find(self._api, self.resource, key)

    async def patch(
        self, key: str, patch: Obj, *, uid: str = "", how: Patch = Patch.STRATEGIC, subresource: str | None = None
    ) -> Obj | None:
        """The object after the patch, or None if it is gone. With `uid`, a later one of its name is left alone."""
        namespace, name = split_key(key)
        meta = patch.get("metadata") or {}
        if uid:
            patch = {**patch, "metadata": {**meta, "uid": uid}}
        try:
            answer = await self._api.patch(self.resource, name, patch, namespace, how=how, subresource=subresource)
        except Exception as error:
            if is_not_found(error) or (uid and is_conflict(error) and "resourceVersion" not in meta):
                return None
            raise
        self.observe(answer)
        return answer

    async def replace(self, obj: Obj, *, subresource: str | None = None) -> None:
        """Write the object as a whole, unless somebody else has written it meanwhile."""
        self.observe(await self._api.replace(self.resource, obj, subresource=subresource))

    async def release(self, key: str, uid: str, finalizer: str) -> None:
        """Take a finalizer off this very object, and leave those of others."""
        await self.patch(key, {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}, uid=uid)

    async def write_status(self, obj: Obj, status: Obj) -> Obj:
        """The object with these fields in its status; nothing is written where they are so already."""
        if status.items() <= (obj.get("status") or {}).items():
            return obj
        patch = {"status": status}
        return await self.patch(key_of(obj), patch, how=Patch.MERGE, subresource="status") or obj

    async def remove(self, key: str, uid: str, *, grace: int | None = None) -> None:
        """Delete this very object, if it is still there."""
        namespace, name = split_key(key)
        with ignoring(is_not_found, is_conflict):
            answer = await self._api.delete(self.resource, name, namespace, grace=grace, uid=uid)
            if answer.get("kind") != "Status":
                self.observe(answer)


async def find(api: KubeApi, res: Resource, key: str) -> Obj | None:
    namespace, name = split_key(key)
    with ignoring(is_not_found):
        return await api.get(res, name, namespace)
    return None


def controller_of(obj: Obj) -> dict[str, Any] | None:
    """The reference to the object's controller, if it has one."""
    return next((r for r in obj["metadata"].get("ownerReferences") or () if r.get("controller")), None)


def about(obj: Obj, resource: Resource) -> Reference:
    """The object as events name it; the cached form of an object need not say its kind."""
    meta = obj["metadata"]
    return Reference(resource.api_version, resource.kind, meta.get("namespace", ""), meta["name"], meta["uid"])
