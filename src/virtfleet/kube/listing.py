"""Whole lists out of pages.

A continue token lives for minutes only, so a list that is read slowly can expire in the middle (410). It then starts
again without a limit: one answer cannot expire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, is_gone
from virtfleet.kube.resource import Resource

T = TypeVar("T")

PAGE = 500


async def read_all(
    api: KubeApi,
    res: Resource,
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    read: Callable[[bytes], T],
) -> tuple[list[T], str]:
    """Every object through `read`, page by page, and the resourceVersion of the list."""
    try:
        return await _read_pages(api, res, namespace, labels, fields, PAGE, read)
    except ApiError as error:
        if not is_gone(error):
            raise
        return await _read_pages(api, res, namespace, labels, fields, 0, read)


async def _read_pages(
    api: KubeApi,
    res: Resource,
    namespace: str | None,
    labels: str,
    fields: str,
    limit: int,
    read: Callable[[bytes], T],
) -> tuple[list[T], str]:
    items: list[T] = []
    version = ""
    async for page in api.pages(res, namespace, labels=labels, fields=fields, limit=limit):
        items += map(read, page.items)
        version = page.resource_version
    return items, version
