"""What a handler says of its node: the sign of life and the labels, against an API server whose faults are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from handler_kit import api_server
from kube_fixtures import ScriptedServer, eventually, status_answer

import virtfleet
from virtfleet.api import names
from virtfleet.handler.node import heartbeat as heartbeats
from virtfleet.handler.node import labeller as labeller_module
from virtfleet.handler.node.heartbeat import Heartbeat
from virtfleet.handler.node.labeller import SKIP, Labeller
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import NODES, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        server.put(NODES, {"metadata": {"name": "n1", "labels": {"zone": "a"}, "annotations": {}}})
        yield server


@pytest.fixture
async def api(server: ScriptedServer) -> AsyncIterator[Client]:
    async with Client(Config(server.url)) as api:
        yield api


@asynccontextmanager
async def beating(heartbeat: Heartbeat) -> AsyncIterator[None]:
    task = asyncio.create_task(heartbeat.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def node(server: ScriptedServer) -> Obj:
    return server.stored(NODES)[0]["metadata"]


def schedulable(server: ScriptedServer) -> str:
    return str(node(server)["labels"].get(names.SCHEDULABLE))


async def test_a_node_is_schedulable_while_its_handler_lives(
    server: ScriptedServer, api: Client, tmp_path: Path
) -> None:
    async with beating(Heartbeat(api, "n1", lambda: True, tmp_path / "none")):
        await eventually(lambda: schedulable(server) == "true")
        assert node(server)["annotations"][names.HANDLER_VERSION] == virtfleet.__version__
        assert node(server)["annotations"][names.HANDLER_HEARTBEAT]
        assert node(server)["labels"]["zone"] == "a"
    assert schedulable(server) == "false", "the last word of a handler that ends"


async def test_the_node_waits_for_its_devices_and_hears_of_changes(
    server: ScriptedServer, api: Client, tmp_path: Path
) -> None:
    ready = False
    heartbeat = Heartbeat(api, "n1", lambda: ready, tmp_path / "none")
    async with beating(heartbeat):
        await eventually(lambda: schedulable(server) == "false")
        ready = True
        heartbeat.changed()
        await eventually(lambda: schedulable(server) == "true")
        ready = False
        heartbeat.changed()
        await eventually(lambda: schedulable(server) == "false")


@pytest.mark.parametrize("part", ["heartbeat", "labeller"])
async def test_it_ends_when_it_is_told_to_though_there_is_news_at_that_moment(
    server: ScriptedServer, api: Client, tmp_path: Path, part: str
) -> None:
    heartbeat = Heartbeat(api, "n1", lambda: True, tmp_path / "none")
    labeller = Labeller(api, Recorder(api, "virt-handler", "n1"), "n1", dict)
    run, news = (heartbeat.run, heartbeat._news) if part == "heartbeat" else (labeller.run, labeller._stirred)
    task = asyncio.create_task(run())
    await eventually(lambda: news._waiters)  # type: ignore[attr-defined]
    news.set()
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


async def test_a_node_without_its_devices_says_so_when_patience_is_over(
    server: ScriptedServer, api: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "PATIENCE", 0.05)
    async with beating(Heartbeat(api, "n1", lambda: False, tmp_path / "none")):
        await eventually(lambda: names.HANDLER_HEARTBEAT in node(server)["annotations"])
        assert schedulable(server) == "false"


async def test_signs_of_life_are_repeated_and_survive_a_server_that_is_away(
    server: ScriptedServer, api: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "PERIOD", (0.01, 0.02))
    server.next("PATCH", "/nodes/n1", status_answer(ApiError("InternalError", "away")), times=2)
    async with beating(Heartbeat(api, "n1", lambda: True, tmp_path / "none")):
        await eventually(lambda: server.count("PATCH", "/nodes/n1") > 6 and schedulable(server) == "true")


async def test_cpus_that_pods_can_have_for_themselves_are_announced(
    server: ScriptedServer, api: Client, tmp_path: Path
) -> None:
    state = tmp_path / "cpu_manager_state"
    state.write_text('{"policyName": "static", "defaultCpuSet": "0-1", "checksum": 1}')
    async with beating(Heartbeat(api, "n1", lambda: True, state)):
        await eventually(lambda: node(server)["labels"].get(names.CPU_MANAGER) == "true")


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[InProcessApi]:
    async with api_server(tmp_path) as api:
        await api.create(NODES, {"metadata": {"name": "n1", "labels": {"zone": "a"}}})
        yield api


async def test_labels_are_written_once_and_not_again(real: InProcessApi) -> None:
    labeller = Labeller(
        real, Recorder(real, "virt-handler", "n1"), "n1", lambda: {f"{names.HYPERVISOR_WORKS}lxc": "true"}
    )
    await labeller.label()
    first = (await real.get(NODES, "n1"))["metadata"]
    assert first["labels"] == {"zone": "a", f"{names.HYPERVISOR_WORKS}lxc": "true"}
    await labeller.label()
    assert (await real.get(NODES, "n1"))["metadata"]["resourceVersion"] == first["resourceVersion"]


async def test_a_node_that_is_to_be_left_alone_is_left_alone(real: InProcessApi) -> None:
    await real.patch(NODES, "n1", {"metadata": {"annotations": {SKIP: "true"}}})
    await Labeller(
        real, Recorder(real, "virt-handler", "n1"), "n1", lambda: {f"{names.HYPERVISOR_WORKS}lxc": "true"}
    ).label()
    assert (await real.get(NODES, "n1"))["metadata"]["labels"] == {"zone": "a"}


async def test_a_change_of_settings_is_followed_soon(real: InProcessApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labeller_module, "_APART", 0.0)
    asked = asyncio.Event()

    def wanted() -> dict[str, str]:
        asked.set()
        return {}

    labeller = Labeller(real, Recorder(real, "virt-handler", "n1"), "n1", wanted)
    running = asyncio.create_task(labeller.run())
    try:
        async with asyncio.timeout(10):
            await asked.wait()
            asked.clear()
            labeller.stir()
            await asked.wait()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_an_obsolete_host_model_is_told_once(real: InProcessApi) -> None:
    recorder = Recorder(real, "virt-handler", "n1")
    told: list[tuple[str, str]] = []
    recorder.warning = lambda about, reason, message: told.append((about.name, reason))  # type: ignore[method-assign]
    labeller = Labeller(real, recorder, "n1", lambda: {names.OBSOLETE_HOST_MODEL: "true"})
    await labeller.label()
    await labeller.label()
    assert told == [("n1", "HostModelIsObsolete")]
    await Labeller(real, recorder, "n1", dict).label()
    assert (await real.get(NODES, "n1"))["metadata"]["labels"] == {"zone": "a"}
