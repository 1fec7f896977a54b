"""Admission as the operations see it: the last word before a write, after the kind's own rules.

The operations call `mutate` on the completed object, validate what came back, then call `validate`. The webhooks that
administrators register (`webhooks.py`) are one implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.rights.access import User


@dataclass(slots=True)
class AdmissionRequest:
    """One write in the terms of admission. `warnings` collects what the requester should know."""

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


class Admission:
    """Admits everything; those who have a say override a part. Refusals are raised as ApiError."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        """The object as it should be written."""
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        """Refuse the write, or do nothing."""


class Chain(Admission):
    """Several, in order: each sees what the one before made of the object."""

    def __init__(self, *links: Admission) -> None:
        self._links = links

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        """The object as all of them made it."""
        for link in self._links:
            request.obj = await link.mutate(request)
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        """Ask all of them, until one refuses."""
        for link in self._links:
            await link.validate(request)
