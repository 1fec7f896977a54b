"""Admission as the operations see it: the last word before a write, after the kind's own rules.

The operations call `mutate` on the completed object, validate what came back, then call `validate`. The webhooks that
administrators register (`webhooks.py`) are one implementation; `Unguarded` is for servers without any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.rights.access import User


@dataclass(slots=True)
class AdmissionRequest:
    """One write in the terms of admission. `warnings` collects what the requester should be told."""

    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    kind: Kind
    namespace: str
    name: str
    user: User
    obj: Obj | None  # None for DELETE
    old: Obj | None  # None for CREATE
    subresource: str = ""
    dry_run: bool = False
    options: Obj | None = None
    warnings: list[str] = field(default_factory=list)


class Admission(Protocol):
    """Refusals are raised as ApiError."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        """The object as it should be written."""
        ...

    async def validate(self, request: AdmissionRequest) -> None: ...


class Unguarded:
    """Admits everything."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        return None


class Chain:
    """Several, in order: each sees what the one before made of the object."""

    def __init__(self, *links: Admission) -> None:
        self._links = links

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        for link in self._links:
            request.obj = await link.mutate(request)
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        for link in self._links:
            await link.validate(request)
