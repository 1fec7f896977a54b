"""What a launcher does to a running guest by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm import agent, operations
from virtfleet.launcher.vm.operations import Operations
from virtfleet.protocol import messages as m


class Domain:
    """A guest whose agent is back after so many questions."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.resumed = False

    async def __call__(self, call: Callable[[Any], object]) -> None:
        call(self)

    def resume(self) -> None:
        self.resumed = True

    async def ask_guest(self, call: Callable[[Any], object], **_: object) -> object:
        self.away -= 1
        if self.away >= 0:
            raise Failure("the guest's agent is not connected")
        return call(self)


@pytest.mark.parametrize("away", [0, 3, 99])
async def test_a_guest_that_stood_still_is_told_the_time(away: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(operations, "_CLOCK_AGAIN", 0)
    monkeypatch.setattr(agent, "command", lambda _, execute, kind, arguments, **__: told.append({execute: arguments}))

    async def look() -> None:
        pass

    domain = Domain(away)
    running = Operations(domain, look, lambda _: None, lambda: False)  # type: ignore[arg-type]
    before = time.time_ns()
    await running.handlers()[m.Unpause](m.Unpause())
    assert domain.resumed
    assert running._clock is not None
    await asyncio.wait_for(running._clock, 10)
    if away < operations._CLOCK_TRIES:
        [asked] = told
        assert before <= asked["guest-set-time"]["time"] <= time.time_ns()
    else:
        assert told == [], "who has no agent has another clock"
    running.close()
