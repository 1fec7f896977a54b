"""`virt-launcher probe`: what a kubelet learns of a guest, over the command socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.probe import ask
from virtfleet.launcher.server import Server, Updates
from virtfleet.protocol.messages import Done, Executed, GuestExec, GuestPing


class Guest:
    """A launcher whose guest answers, refuses, or says nothing."""

    def __init__(self) -> None:
        self.trouble = ""
        self.silent = False
        self.asked: list[GuestExec] = []

    async def ping(self, _: GuestPing) -> Done:
        if self.silent:
            await asyncio.Event().wait()
        if self.trouble:
            raise Failure(self.trouble)
        return Done()

    async def execute(self, request: GuestExec) -> Executed:
        self.asked.append(request)
        return Executed(exit_code=3, stdout=b"out\n", stderr=b"err\n")


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "sock"


@pytest.fixture
async def guest(socket: Path) -> AsyncIterator[Guest]:
    guest = Guest()
    server = Server(socket, {GuestPing: guest.ping, GuestExec: guest.execute}, Updates())
    await server.start()
    yield guest
    await server.close()


async def test_a_guest_whose_agent_answers_is_well(guest: Guest, socket: Path) -> None:
    assert await ask(str(socket), [], 5) == 0


async def test_an_agent_that_is_away_is_told_of(guest: Guest, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guest.trouble = "the agent is not connected"
    assert await ask(str(socket), [], 5) == 1
    assert "the agent is not connected" in capsys.readouterr().err


async def test_an_agent_that_says_nothing_fails_the_probe_in_time(
    guest: Guest, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guest.silent = True
    assert await ask(str(socket), [], 1) == 1
    assert "did not answer within 1 s" in capsys.readouterr().err


async def test_a_command_in_the_guest_gives_its_own_exit_code_and_words(
    guest: Guest, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ask(str(socket), ["cat", "/tmp/healthy"], 5) == 3
    assert guest.asked == [GuestExec(command=["cat", "/tmp/healthy"], timeout_seconds=5)]
    assert capsys.readouterr() == ("out\n", "err\n")


async def test_without_a_launcher_the_probe_fails(socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await ask(str(socket), [], 5) == 1
    assert "the launcher cannot be reached" in capsys.readouterr().err
