"""The handlers of two nodes move a guest: real sockets of launchers, and a real process in the place of the guest."""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from handler_kit import handler, scheduled
from handler_launcher import launcher
from kube_fixtures import eventually
from launcher_channels import LauncherChannels, passed
from pod_member import PodMember
from test_handler_reconcile import phase, reasons, until, vmi

from virtfleet.api import names
from virtfleet.handler.vms import departures
from virtfleet.handler.vms.reconcile import NodeVms
from virtfleet.kube.resource import VMIS
from virtfleet.launcher.failure import Failure
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.channels import Channel
from virtfleet.protocol.messages import Status

_SET_NAME = 15


class GuestProcess(PodMember):
    """What a handler takes for the process of a guest."""

    def work(self) -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, b"libvirt_lxc", 0, 0, 0)
        signal.pause()


class Move:
    """A VM that runs on n1 and is to go to n2, with handlers and launchers on both."""

    def __init__(self, api: InProcessApi, place: Path) -> None:
        self.api = api
        self.places = {"n1": place / "a", "n2": place / "b"}
        self.handlers: dict[str, AsyncExitStack] = {}
        self.vms: dict[str, NodeVms] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Move:
        await scheduled(self.api, self.places["n1"])
        pods = {node: self.places[node] / "pods" / pod for node, pod in (("n1", "pod-vm"), ("n2", "pod-b"))}
        pods["n2"].mkdir(parents=True)
        self.source = await self._stack.enter_async_context(launcher(pods["n1"]))
        self.target = await self._stack.enter_async_context(launcher(pods["n2"]))
        self.channels = {node: LauncherChannels(pod) for node, pod in pods.items()}
        for channels in self.channels.values():
            self._stack.push_async_callback(channels.close)
        self.guest = GuestProcess("pod-vm")
        self._stack.callback(self.guest.end)
        for node in self.places:
            await self.start(node)
        await phase(self.api, "Running")
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in [*self.handlers]:
            await self.stop(node)
        await self._stack.aclose()

    async def start(self, node: str) -> None:
        self.handlers[node] = AsyncExitStack()
        self.vms[node] = await self.handlers[node].enter_async_context(handler(self.api, self.places[node], node=node))

    async def stop(self, node: str) -> None:
        await self.handlers.pop(node).aclose()

    async def begin(self, **state: Any) -> None:
        """As the controller does, when the Pod of the target is there."""
        about = {"migrationUid": "m1", "sourceNode": "n1", "targetNode": "n2", "sourcePod": "p-a", "targetPod": "p-b"}
        status = {"activePods": {"pod-vm": "n1", "pod-b": "n2"}, "migrationState": {**about, **state}}
        labels = {names.MIGRATION_TARGET_NODE: "n2"}
        await self.api.patch(VMIS, "vm", {"metadata": {"labels": labels}, "status": status}, "default")

    async def departed(self) -> None:
        await eventually(lambda: self.source.departed)
        await self.status(lambda state: state.get("startTimestamp"))

    async def change(self, **state: Any) -> None:
        await self.api.patch(VMIS, "vm", {"status": {"migrationState": state}}, "default")

    async def status(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        seen = await until(self.api, lambda status: condition(status.get("migrationState") or {}))
        state: dict[str, Any] = seen["status"]["migrationState"]
        return state

    def all_is_there(self) -> None:
        """The target's launcher has all of the guest, which stands still."""
        self.target.becomes(Status.PAUSED, "User", name="default_vm", uuid="u")
        self.target.moves("m1", complete=True)

    def source_leaves(self) -> None:
        self.guest.end()
        self.source.becomes(Status.SHUTOFF, "Migrated")

    async def taken_over(self) -> None:
        seen = await until(self.api, lambda status: status["nodeName"] == "n2")
        state = seen["status"]["migrationState"]
        assert (state["completed"], state.get("failed")) == (True, None)
        assert state["endTimestamp"]
        assert state["targetNodeDomainReadyTimestamp"]
        told = [state["targetState"][word] for word in ("domainDetected", "domainReadyTimestamp", "nodeAddress")]
        assert told == [True, state["targetNodeDomainReadyTimestamp"], state["targetNodeAddress"]]
        assert seen["status"]["phase"] == "Running"
        assert seen["metadata"]["labels"][names.NODE_NAME] == "n2"
        assert names.MIGRATION_TARGET_NODE not in seen["metadata"]["labels"]
        await eventually(lambda: self.target.asked[-1] == "Sync")
        assert self.target.asked.count("Arrive") == 1


@pytest.fixture
async def move(api: InProcessApi, place: Path) -> AsyncIterator[Move]:
    async with Move(api, place) as made:
        yield made


async def test_a_guest_moves(move: Move) -> None:
    await move.begin()
    await move.departed()
    order = move.source.departed[0]
    assert (order.migration, order.document) == ("m1", "<domain/>")
    assert move.target.prepared[0].migration == "m1"
    near = await passed((await eventually(lambda: move.channels["n1"].served))[0], Channel.MEMORY)
    with near:
        near.sendall(b"memory")
        _, far = (await eventually(lambda: move.channels["n2"].ends))[0]
        assert await asyncio.to_thread(far.recv, 16) == b"memory"
    move.all_is_there()
    await move.status(lambda state: state.get("targetNodeDomainDetected"))
    assert "Arrive" not in move.target.asked, "the guest may run on the source still"
    move.source_leaves()
    await eventually(lambda: "Arrive" in move.target.asked)
    await move.taken_over()
    await reasons(move.api, "Migrated")
    assert move.vms["n2"].running("default/vm")
    assert move.source.asked.count("Depart") == 1
    assert not move.vms["n1"].running("default/vm")


async def test_what_failed_stays_and_the_target_goes(move: Move) -> None:
    await move.begin()
    await move.departed()
    move.all_is_there()
    move.source.moves("m1", failure="the target's memory is too small")
    state = await move.status(lambda state: state.get("failed"))
    assert state["failureReason"] == "the target's memory is too small"
    assert state["endTimestamp"]
    assert state["completed"], "as with KubeVirt"
    await eventually(lambda: "Kill" in move.target.asked)
    assert "Arrive" not in move.target.asked
    assert (await vmi(move.api))["status"]["nodeName"] == "n1"
    assert move.source.updates.latest.state.status is Status.RUNNING


@pytest.mark.parametrize("next_handler", [False, True])
async def test_a_guest_that_may_be_whole_elsewhere_runs_on_when_its_status_says_that_it_stays(
    move: Move, next_handler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    async def look() -> None:
        seen.append((await vmi(move.api))["status"]["migrationState"])

    monkeypatch.setattr(move.source, "before_it_stays", look)
    await move.begin()
    await move.departed()
    if next_handler:  # the one before has written it, and nothing else
        await move.stop("n1")
        await move.change(failed=True, failureReason="the connection was lost", endTimestamp="2026-01-01T00:00:00Z")
    move.all_is_there()
    move.source.becomes(Status.PAUSED, "Migration")
    move.source.moves("m1", running=True, asks="the connection was lost")
    if next_handler:
        await move.start("n1")
    await eventually(lambda: "Stay" in move.source.asked)
    assert (seen[0]["failed"], seen[0]["failureReason"]) == (True, "the connection was lost"), "before it runs on"
    await eventually(lambda: "Kill" in move.target.asked)
    move.guest.end()
    assert "Arrive" not in move.target.asked


async def test_a_launcher_that_does_not_hear_that_its_guest_stays_is_told_again(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter(range(10))  # nothing else has the VM looked at so often

    async def refuse() -> None:
        if next(refusals, None) is not None:
            raise Failure("it is busy")

    monkeypatch.setattr(move.source, "before_it_stays", refuse)
    monkeypatch.setattr(departures, "_AGAIN", 0.05)
    await move.begin()
    await move.departed()
    move.all_is_there()
    move.source.becomes(Status.PAUSED, "Migration")
    move.source.moves("m1", running=True, asks="the connection was lost")
    await eventually(lambda: move.source.asked.count("Stay") == 11)


@pytest.mark.parametrize("complete", [True, False])
async def test_a_guest_that_may_run_elsewhere_by_itself_stays_when_that_cannot_be(move: Move, complete: bool) -> None:
    """With post-copy libvirt does not wait for anybody on the target."""
    await move.begin(migrationConfiguration={"allowPostCopy": True})
    await move.departed()
    move.source.becomes(Status.PAUSED, "Migration")
    if complete:
        move.target.moves("m1", complete=True)
    move.source.moves("m1", running=True, asks="the connection was lost")
    if complete:
        await until(move.api, lambda status: status["nodeName"] == "n2")
        await eventually(lambda: "Kill" in move.source.asked)
        assert "Kill" not in move.target.asked
        assert "Stay" not in move.source.asked
    else:
        await eventually(lambda: "Kill" in move.target.asked)
        assert "Stay" not in move.source.asked
        await move.change(failed=True, endTimestamp="2026-01-01T00:00:00Z")  # as the controller does, who sees it end
        await eventually(lambda: "Stay" in move.source.asked)


async def test_a_guest_that_asks_is_the_targets_where_it_never_ran_on(move: Move) -> None:
    """Its source's handler is away, and the process ends: the next one finds that nobody has let it run."""
    await move.begin()
    await move.departed()
    await move.stop("n1")
    move.all_is_there()
    move.source.moves("m1", running=True, asks="the connection was lost")
    move.guest.end()
    move.source.becomes(Status.CRASHED, migration=None)
    await move.start("n1")
    await move.taken_over()


async def test_a_launcher_that_tells_of_the_end_before_the_kernel_fails_nothing(move: Move) -> None:
    """The source's process is killed when the target has all of the guest, which is not lost."""
    await move.begin()
    await move.departed()
    move.all_is_there()
    await move.status(lambda state: state.get("targetNodeDomainDetected"))
    move.source.becomes(Status.CRASHED, "Unknown")
    (vm,) = move.vms["n1"].vms()
    await eventually(lambda: vm.launcher.state and vm.launcher.state.status.ended)
    move.guest.end()
    await move.taken_over()


async def test_a_migration_is_aborted(move: Move) -> None:
    await move.begin()
    await move.departed()
    await move.change(abortRequested=True)
    state = await move.status(lambda state: state.get("failed"))
    assert state["abortStatus"] == "Succeeded"
    await eventually(lambda: "Kill" in move.target.asked)


async def test_an_abort_that_comes_too_late_changes_nothing(move: Move) -> None:
    await move.begin()
    await move.departed()
    move.source.refusal = "the guest already runs on the target"
    await move.change(abortRequested=True)
    await move.status(lambda state: state.get("abortStatus") == "Failed")
    move.all_is_there()
    move.source_leaves()
    await move.taken_over()


async def test_a_handler_that_does_not_know_its_own_address_says_so(move: Move) -> None:
    move.vms["n2"]._proxy.address = ""
    await move.begin()
    state = await move.status(lambda state: state.get("failed"))
    assert "node n2" in state["failureReason"] and "POD_IP" in state["failureReason"]
    assert "targetNodeAddress" not in state
    assert not move.source.departed


async def test_a_launcher_that_refuses_is_heard(move: Move) -> None:
    move.source.refusal = "the VM cannot move: VMI uses virtiofs"
    await move.begin()
    state = await move.status(lambda state: state.get("failed"))
    assert state["failureReason"] == "the VM cannot move: VMI uses virtiofs"


async def test_a_source_handler_that_ends_leaves_the_guest_to_the_next(move: Move) -> None:
    """The guest leaves while nobody looks: the kernel says that its process is gone."""
    await move.begin()
    await move.departed()
    await move.stop("n1")
    move.all_is_there()
    move.source_leaves()
    await move.status(lambda state: state.get("targetNodeDomainDetected"))
    assert "Arrive" not in move.target.asked
    await move.start("n1")
    await move.taken_over()


async def test_a_target_handler_that_ends_opens_another_listener(move: Move) -> None:
    await move.begin()
    await move.departed()
    before = await move.status(lambda state: state.get("targetDirectMigrationNodePorts"))
    await move.stop("n2")
    move.all_is_there()
    move.source_leaves()
    await move.start("n2")
    await move.taken_over()
    after = (await vmi(move.api))["status"]["migrationState"]
    assert after["targetDirectMigrationNodePorts"] != before["targetDirectMigrationNodePorts"]


async def test_a_handler_that_ended_between_the_arrival_and_its_report(move: Move) -> None:
    await move.begin()
    await move.departed()
    await move.stop("n2")
    await move.stop("n1")
    move.source_leaves()
    move.all_is_there()
    move.target.becomes(Status.RUNNING)
    await move.start("n2")
    seen = await until(move.api, lambda status: status["nodeName"] == "n2")
    assert seen["status"]["migrationState"]["completed"]
    assert "Arrive" not in move.target.asked


async def test_a_source_that_cannot_be_asked_must_be_known_to_have_ended(move: Move) -> None:
    """By the VMI's status, where its handler or the controller writes it."""
    await move.begin()
    await move.departed()
    await move.stop("n1")
    move.all_is_there()
    await move.status(lambda state: state.get("targetNodeDomainDetected"))
    assert "Arrive" not in move.target.asked
    await move.change(sourceEndTimestamp="2026-01-01T00:00:00Z")
    await move.taken_over()


async def test_a_guest_that_nobody_took_over_is_lost_and_that_is_said(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "_SAY_SO", 0.5)
    await move.begin()
    await move.departed()
    move.source_leaves()
    state = await move.status(lambda state: state.get("failed"))
    assert "node n2 has not taken it over" in state["failureReason"]
    await phase(move.api, "Failed")
    assert "Arrive" not in move.target.asked


async def test_a_guest_that_libvirt_has_handed_over_waits_for_a_target_whose_handler_is_away(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is there, and only the word of it was lost with that handler, which is started again later."""
    monkeypatch.setattr(departures, "_SAY_SO", 1.0)  # over at the first look after the guest's end, in two seconds
    await move.begin()
    await move.departed()
    await move.stop("n2")
    move.all_is_there()
    move.source.becomes(Status.SHUTOFF, "Migrated")
    move.source.moves("m1", left=True)
    move.guest.end()
    state = await move.status(lambda state: state.get("sourceEndTimestamp") or state.get("failed"))
    assert not state.get("failed"), state
    await move.start("n2")
    await move.taken_over()


async def test_a_handler_that_drains_finishes_and_begins_nothing_new(move: Move) -> None:
    await move.begin()
    await move.departed()
    draining = [asyncio.create_task(vms.drain(20)) for vms in move.vms.values()]
    move.all_is_there()
    move.source_leaves()
    await move.taken_over()
    await asyncio.wait_for(asyncio.gather(*draining), 10)


async def test_a_handler_that_drains_takes_nobody_in(move: Move) -> None:
    await move.vms["n2"].drain(1)
    await move.begin()
    await asyncio.sleep(0.5)
    assert not move.target.prepared
    assert "targetNodeAddress" not in (await vmi(move.api))["status"]["migrationState"]
