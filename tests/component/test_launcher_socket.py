"""The command socket: what happens between a handler and a launcher when one of them is slow, old, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.server import Server, Updates
from virtfleet.protocol import wire
from virtfleet.protocol.client import Client, LauncherGone, Refused
from virtfleet.protocol.messages import (
    DomainState,
    Done,
    Event,
    GetState,
    Hello,
    Kill,
    Pause,
    Reset,
    Shutdown,
    Status,
    Sync,
    Update,
)


class Launcher:
    """A launcher without a domain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.updates = Updates()
        self.slow = asyncio.Event()
        self.asked = asyncio.Event()
        handlers = {GetState: self._state, Pause: self._pause, Kill: self._kill, Reset: self._reset, Sync: self._sync}
        self.server = Server(path, handlers, self.updates)

    async def _state(self, _: GetState) -> DomainState:
        return self.updates.latest.state

    async def _pause(self, _: Pause) -> Done:
        self.asked.set()
        await self.slow.wait()
        return Done()

    async def _kill(self, _: Kill) -> Done:
        raise Failure("there is nothing to kill")

    async def _reset(self, _: Reset) -> Done:
        raise ZeroDivisionError("a mistake of ours")

    async def _sync(self, request: Sync) -> DomainState:
        return DomainState(name=str(len(request.vmi)))


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Launcher]:
    started = Launcher(tmp_path / "sockets" / "launcher-sock")
    await started.server.start()
    yield started
    started.slow.set()
    await started.server.close()


@pytest.fixture
async def client(launcher: Launcher) -> AsyncIterator[Client]:
    async with await Client.connect(launcher.path) as connected:
        yield connected


async def test_a_large_vmi_arrives_whole(client: Client) -> None:
    assert (await client.call(Sync(vmi=b"x" * 3_000_000))).name == "3000000"


async def test_a_request_that_takes_long_holds_up_no_other(launcher: Launcher, client: Client) -> None:
    waiting = asyncio.create_task(client.call(Pause()))
    await launcher.asked.wait()
    assert await client.call(GetState()) == DomainState()
    assert not waiting.done()
    launcher.slow.set()
    assert await waiting == Done()


async def test_what_could_not_be_done_is_said(client: Client) -> None:
    with pytest.raises(Refused, match="there is nothing to kill"):
        await client.call(Kill())
    with pytest.raises(Refused, match="ZeroDivisionError: a mistake of ours"):
        await client.call(Reset())


async def test_a_watch_begins_with_the_present_and_ends_with_the_last_state(launcher: Launcher) -> None:
    launcher.updates.publish(Update(state=DomainState(status=Status.RUNNING), event=Event(kind="Reboot")))
    async with await Client.connect(launcher.path) as client:
        watch = client.watch()
        assert await anext(watch) == Update(state=DomainState(status=Status.RUNNING))
        launcher.updates.publish(Update(state=DomainState(status=Status.PAUSED), event=Event(kind="IOError")))
        assert (await anext(watch)).event == Event(kind="IOError")
        launcher.updates.publish(Update(state=DomainState(status=Status.SHUTOFF)))
        closing = asyncio.create_task(launcher.server.close())
        assert [update.state.status async for update in watch] == [Status.SHUTOFF]
        await closing


async def test_an_answer_that_is_due_is_given_before_the_launcher_ends(launcher: Launcher, client: Client) -> None:
    waiting = asyncio.create_task(client.call(Pause()))
    await launcher.asked.wait()
    closing = asyncio.create_task(launcher.server.close())
    launcher.slow.set()
    assert await waiting == Done()
    await closing
    with pytest.raises(LauncherGone):
        await client.call(GetState())


async def test_several_handlers_may_watch_and_leave_as_they_like(launcher: Launcher) -> None:
    first, second = await Client.connect(launcher.path), await Client.connect(launcher.path)
    watches = [first.watch(), second.watch()]
    for watch in watches:
        await anext(watch)
    await first.close()
    launcher.updates.publish(Update(state=DomainState(status=Status.RUNNING)))
    assert (await anext(watches[1])).state.status is Status.RUNNING
    await second.close()


async def test_a_request_that_an_older_launcher_does_not_know_is_not_sent(client: Client) -> None:
    with pytest.raises(Refused, match="does not know Shutdown"):
        await client.call(Shutdown())


async def test_a_request_that_only_a_later_handler_knows_is_refused_by_name(launcher: Launcher) -> None:
    reader, writer = await asyncio.open_unix_connection(launcher.path)
    await wire.receive(reader, Hello, wire.ANSWER)
    writer.write(wire.encode(Hello(), wire.REQUEST) + wire.encode(wire.Request(1, "Teleport"), wire.REQUEST))
    answer = await wire.receive(reader, wire.Answer, wire.ANSWER)
    assert answer is not None
    assert answer.error == "this launcher does not know Teleport"
    writer.close()


async def test_rubbish_on_the_socket_ends_that_connection_only(launcher: Launcher, client: Client) -> None:
    reader, writer = await asyncio.open_unix_connection(launcher.path)
    await wire.receive(reader, Hello, wire.ANSWER)
    writer.write(b"\0\0\0\4what")
    assert await wire.receive(reader, wire.Answer, wire.ANSWER) is None
    writer.close()
    assert await client.call(GetState()) == DomainState()
