"""What a handler knows of its launchers, over real sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from handler_launcher import SOCKET, FakeLauncher, launcher
from kube_fixtures import eventually

from virtfleet.handler.pods import launchers
from virtfleet.handler.pods.launchers import Launcher, Presence, Unresponsive
from virtfleet.handler.vms.records import VmRecord, VmRecords
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import DomainState, Event, Status, Sync, Unpause, Update


@pytest.fixture
def pod() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="vfh"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def following(pod: Path, **settings: Any) -> AsyncIterator[tuple[Launcher, list[Event | None]]]:
    heard: list[Event | None] = []
    found = Launcher(pod, heard.append, **settings)
    try:
        yield found, heard
    finally:
        await found.close()


async def test_a_launcher_may_come_later_and_its_states_are_followed(pod: Path) -> None:
    async with following(pod) as (view, heard):
        assert view.presence is Presence.COMING
        async with launcher(pod) as real:
            await eventually(lambda: view.presence is Presence.HERE and view.state == DomainState())
            real.becomes(Status.RUNNING, agent=True)
            await eventually(lambda: view.state == DomainState(status=Status.RUNNING, agent=True))
            real.updates.publish(Update(state=real.updates.latest.state, event=Event(kind="Reboot")))
            await eventually(lambda: Event(kind="Reboot") in heard)


async def test_a_handler_that_restarts_finds_the_present_state(pod: Path) -> None:
    async with launcher(pod) as real:
        real.becomes(Status.RUNNING)
        for _ in range(2):
            async with following(pod) as (view, _):
                await eventually(lambda view=view: view.state and view.state.status is Status.RUNNING)


async def test_the_last_state_of_a_launcher_is_kept_when_it_ends(pod: Path) -> None:
    async with following(pod) as (view, _):
        async with launcher(pod) as real:
            await eventually(lambda: view.presence is Presence.HERE)
            real.becomes(Status.SHUTOFF, "Shutdown")
        await eventually(lambda: view.presence is Presence.GONE)
        assert view.state == DomainState(status=Status.SHUTOFF, reason="Shutdown")


async def test_how_a_domain_ended_is_known_from_what_its_launcher_left(pod: Path) -> None:
    async with launcher(pod) as real:
        real.becomes(Status.SHUTOFF, "Shutdown")
    async with following(pod) as (view, _):
        await eventually(lambda: view.presence is Presence.GONE)
        assert view.state == DomainState(status=Status.SHUTOFF, reason="Shutdown")


async def test_a_killed_launcher_is_gone(pod: Path) -> None:
    real = FakeLauncher(pod)
    await real.start()
    async with following(pod) as (view, _):
        real.becomes(Status.RUNNING)
        await eventually(lambda: view.state and view.state.status is Status.RUNNING)
        await real.die()
        await eventually(lambda: view.presence is Presence.GONE)
        assert view.state
        assert not view.state.status.ended


async def test_without_a_pod_the_launcher_is_gone_at_once_and_without_a_socket_after_a_while(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(pod / "nowhere") as (view, _):
        await eventually(lambda: view.presence is Presence.GONE)
    monkeypatch.setattr(launchers, "NEVER_CAME", 0.1)
    async with following(pod) as (view, _):
        await eventually(lambda: view.presence is Presence.GONE)


async def test_requests_are_answered_refused_or_not_heard(pod: Path) -> None:
    async with following(pod) as (view, _):
        with pytest.raises(Unresponsive, match="not connected"):
            await view.call(Sync())
        async with launcher(pod) as real:
            await eventually(lambda: view.presence is Presence.HERE)
            assert (await view.call(Sync())).status is Status.RUNNING
            real.refusal = "libvirt: no such disk"
            with pytest.raises(Refused, match="no such disk"):
                await view.call(Sync())
            with pytest.raises(Refused, match="does not know Unpause"):
                await view.call(Unpause())


async def test_a_launcher_that_hangs_is_unresponsive(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: FakeLauncher, request: Sync) -> DomainState:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(FakeLauncher, "_sync", hang)
    monkeypatch.setattr(launchers, "ANSWER", 0.1)
    async with launcher(pod), following(pod) as (view, _):
        await eventually(lambda: view.presence is Presence.HERE)
        with pytest.raises(Unresponsive, match="did not answer"):
            await view.call(Sync())


async def test_the_launchers_process_is_known(pod: Path) -> None:
    async with launcher(pod) as real, following(pod) as (view, _):
        await eventually(lambda: view.presence is Presence.HERE)
        assert view.process
        assert real.process
        assert view.process.number == real.process.number


async def test_a_launcher_that_pretends_to_be_another_is_refused(pod: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(pod, vmi="mine") as (view, _):
        async with launcher(pod, vmi="another"):
            await eventually(lambda: "launcher of VMI another, and should be that of mine" in caplog.text)
            assert view.presence is Presence.COMING
        async with launcher(pod, vmi="mine"):
            await eventually(lambda: view.presence is Presence.HERE)


async def test_a_link_to_the_socket_of_another_pod_is_not_followed(pod: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = pod / "mine", pod / "other"
    (mine / SOCKET).parent.mkdir(parents=True)
    async with launcher(other), following(mine) as (view, _):
        (mine / SOCKET).symlink_to(other / SOCKET)
        await eventually(lambda: "it is or goes through a link" in caplog.text)
        assert view.presence is Presence.COMING


def test_records_outlive_the_handler(tmp_path: Path) -> None:
    record = VmRecord(namespace="default", name="vm", uid="u1", pod="p1", since=7.0)
    VmRecords(tmp_path).add(record)
    (tmp_path / "torn.json").write_text("{")
    records = VmRecords(tmp_path)
    assert records.of_vmi("u1") == records.all() == [record]
    assert records.of_pod("p1") == record
    records.remove("p1")
    assert not list(tmp_path.iterdir()), "a record that cannot be read is no use to anybody"
    assert VmRecords(tmp_path).all() == []


def test_records_of_an_earlier_version_are_found_and_go(tmp_path: Path) -> None:
    """They were named after the VMI."""
    (tmp_path / "u1.json").write_text('{"namespace":"default","name":"vm","uid":"u1","pod":"p1"}')
    records = VmRecords(tmp_path)
    assert [record.key for record in records.all()] == ["default/vm/p1"]
    records.remove("p1")
    assert not list(tmp_path.iterdir())


def test_of_two_pods_of_a_vmi_the_later_one_comes_last(tmp_path: Path) -> None:
    records = VmRecords(tmp_path)
    for pod, since in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        records.add(VmRecord(namespace="default", name="vm", uid="u1", pod=pod, since=since))
    records.add(VmRecord(namespace="default", name="vm", uid="u1", pod="a", since=9.0))
    assert [record.pod for record in VmRecords(tmp_path).of_vmi("u1")] == ["a", "b", "c"], "first seen, not last"
