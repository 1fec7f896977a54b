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
    limit = PAGE
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
