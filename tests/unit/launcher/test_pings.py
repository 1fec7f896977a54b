"""Pings of the guest's agent, by which probes find out how a guest is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd.connection import Domain
from virtfleet.launcher.vm.operations import Operations
from virtfleet.protocol.messages import Event, GuestPing


class Agent(Domain):
    """A domain whose guest's agent is here, or away."""

    def __init__(self) -> None:
        self.away = ""
        self.asked = 0

    async def ask_guest(self, call: Callable[..., Any], *, limit: float, urgent: bool = False) -> Any:
        self.asked += 1
        if self.away:
            raise Failure(self.away)
        return {}


@pytest.fixture
def told() -> list[Event]:
    return []


async def ping(operations: Operations) -> bool:
    try:
        await operations.handlers()[GuestPing](GuestPing())
    except Failure:
        return False
    return True


async def _look() -> None: ...


async def test_the_owner_hears_once_that_an_agent_went_away(told: list[Event]) -> None:
    agent = Agent()
    operations = Operations(agent, _look, told.append, lambda: False)
    assert await ping(operations) and told == []
    agent.away = "the guest agent is not connected"
    assert not await ping(operations) and not await ping(operations)
    assert told == [Event(kind="GuestAgentPingFailed", detail="the guest agent is not connected")]
    agent.away = ""
    assert await ping(operations)
    agent.away = "x" * 5000
    assert not await ping(operations)
    assert len(told) == 2 and len(told[1].detail) <= 1024, "an answer that a handler would refuse"


async def test_a_guest_that_rests_is_well_and_is_not_asked(told: list[Event]) -> None:
    agent, rests = Agent(), True
    agent.away = "the guest agent is not connected"
    operations = Operations(agent, _look, told.append, lambda: rests)
    assert await ping(operations)
    assert (agent.asked, told) == (0, [])
    rests = False
    assert not await ping(operations)
