"""Who is attached to a console or a screen: one at a time, and whoever comes last has it. No I/O.

Hypervisors serve one client per socket. So a newcomer first makes the present one leave, and gets its turn when that
one has let go; newcomers that are overtaken while they wait leave in turn.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class End(enum.Enum):
    """Why a session is over."""

    CLIENT = "the client left"
    GUEST = "the guest's side is gone"
    TAKEN = "EOF: somebody else took over"  # KubeVirt's clients look for the first word
    STOPPING = "this handler stops"
    UNREACHED = "nothing in the guest answers on this vsock port; is a server listening there?"
    NO_TLS = "TLS with the guest failed; does its server speak TLS 1.3? Else use tls=false"


class Seat:
    """One session's claim. `lost` is done, with the reason, as soon as the session has to end."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def lose(self, why: End) -> None:
        if not self.lost.done():
            self.lost.set_result(why)


class _Place:
    """The claims on one console or screen, oldest first. The lock is fair, so they get their turns in that order."""

    def __init__(self) -> None:
        self.claims: list[Seat] = []
        self.turn = asyncio.Lock()


class Seats:
    """All consoles and screens of a node."""

    def __init__(self) -> None:
        self._places: dict[Hashable, _Place] = {}

    def taken(self, key: Hashable) -> bool:
        return key in self._places

    @asynccontextmanager
    async def take(self, key: Hashable) -> AsyncIterator[Seat]:
        """Make everybody who is there leave, and go on when they have."""
        place = self._places.setdefault(key, _Place())
        for earlier in place.claims:
            earlier.lose(End.TAKEN)
        seat = Seat()
        place.claims.append(seat)
        try:
            async with place.turn:
                yield seat
        finally:
            place.claims.remove(seat)
            if not place.claims:
                del self._places[key]

    def clear(self, why: End) -> None:
        """Make everybody leave."""
        for place in self._places.values():
            for seat in place.claims:
                seat.lose(why)
