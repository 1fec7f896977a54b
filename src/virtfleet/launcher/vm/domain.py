"""The way to the one domain beside this launcher: calls to libvirt, whose errors come back as failures for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import libvirt

from virtfleet.launcher.failure import Failure, explained
from virtfleet.launcher.libvirtd.connection import LIMIT, Connection

T = TypeVar("T")
_UNKNOWN_WAY = (libvirt.VIR_ERR_INVALID_ARG, libvirt.VIR_ERR_OPERATION_UNSUPPORTED)


class Domain:
    """A domain by its name, whether it is defined yet or not."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self._connection = connection

    async def run(self, call: Callable[[libvirt.virConnect], T], *, limit: float = LIMIT) -> T:
        """A call that needs more than the domain."""
        with _explained():
            return await self._connection.run(call, limit=limit)

    async def __call__(self, call: Callable[[libvirt.virDomain], T]) -> T:
        """A call to the domain."""
        return await self.run(lambda connection: call(connection.lookupByName(self.name)))

    async def ask_guest(self, call: Callable[[libvirt.virDomain], T], *, limit: float, urgent: bool = False) -> T:
        """A call that the guest's agent has to answer."""
        with _explained():
            return await self._connection.ask_guest(
                lambda connection: call(connection.lookupByName(self.name)), limit=limit, urgent=urgent
            )

    async def stats(self) -> dict[str, int | float | str | bool]:
        """What it has used so far, under libvirt's own names."""

        def collect(connection: libvirt.virConnect) -> dict[str, int | float | str | bool]:
            ((_, values),) = connection.domainListGetStats([connection.lookupByName(self.name)])
            return dict(values)

        return await self.run(collect)


def in_a_known_way(call: Callable[[int], object], ways: Sequence[int]) -> None:
    """A call with the first of these flags that the driver knows."""
    for way in ways:
        try:
            call(way)
            return
        except libvirt.libvirtError as error:
            if way == ways[-1] or error.get_error_code() not in _UNKNOWN_WAY:
                raise


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except libvirt.libvirtError as error:
        raise Failure(f"libvirt: {explained(error.get_error_message())}") from error
