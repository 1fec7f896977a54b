"""Reads, patches and deletions for which absence is an answer and not a failure."""

from __future__ import annotations

from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import Obj, Resource


async def find(api: KubeApi, res: Resource, name: str, namespace: str | None = None) -> Obj | None:
    """The object as the server has it now, or None."""
    try:
        return await api.get(res, name, namespace)
    except ApiError as error:
        if is_not_found(error):
            return None
        raise


async def patch(
    api: KubeApi,
    res: Resource,
    name: str,
    patch: Obj,
    namespace: str | None = None,
    *,
    how: Patch = Patch.STRATEGIC,
    subresource: str | None = None,
) -> Obj | None:
    """The object after the patch, or None if it is gone."""
    try:
        return await api.patch(res, name, patch, namespace, how=how, subresource=subresource)
    except ApiError as error:
        if is_not_found(error):
            return None
        raise


async def remove(api: KubeApi, res: Resource, obj: Obj) -> None:
    """Delete this very object, if it is still there."""
    meta = obj["metadata"]
    try:
        await api.delete(res, meta["name"], meta.get("namespace"), uid=meta["uid"])
    except ApiError as error:
        if not is_not_found(error):
            raise
