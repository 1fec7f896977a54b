"""The handler as a process: its flags, health over HTTPS, one of two that serves, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import aiohttp
import orjson
import pytest
from kube_fixtures import ScriptedServer, eventually

import virtfleet
from virtfleet.api import names
from virtfleet.handler.assembly import OUT_OF_TOUCH
from virtfleet.handler.vms.records import VmRecord, VmRecords
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.resource import KUBEVIRTS, NODES
from virtfleet.local.node.devices import Devices as Kubelet

LIFESPAN = Lifespan(timedelta(hours=2), timedelta(hours=1))


@pytest.fixture
def place(place: Path) -> Path:
    (place / "root/dev/net").mkdir(parents=True)
    (place / "root/dev/net/tun").touch()
    return place


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        server.put(NODES, {"metadata": {"name": "n1", "labels": {}, "annotations": {}}})
        yield server


@pytest.fixture
async def kubelet(place: Path) -> AsyncIterator[Kubelet]:
    found = Kubelet(place / "kubelet/device-plugins", lambda: None)
    serving = await found.start()
    yield found
    await found.stop()
    await serving.stop(None)


class Handler:
    """One process."""

    def __init__(self, place: Path, server: ScriptedServer, name: str, **environment: str) -> None:
        self._place, self._url, self._name = place, server.url, name
        self._environment = os.environ | {"POD_NAME": name} | environment
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.authority = authority = Authority.create("test", LIFESPAN)
        profile = Profile("virt-handler", LIFESPAN, hosts=("localhost", "127.0.0.1"))
        certificates.write(place / name / "certificates", authority.issue(profile).files())
        self._trust = ssl.create_default_context(cadata=authority.bundle.decode())
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Handler:
        kubeconfig = self._place / self._name / "kubeconfig"
        kubeconfig.write_bytes(
            orjson.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": self._url}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        flags = {
            "kubeconfig": kubeconfig,
            "certificates": self._place / self._name / "certificates",
            "host": "127.0.0.1",
            "port": self.port,
            "node": "n1",
            "pods": self._place / "kubelet/pods",
            "kubelet": self._place / "kubelet",
            "private": self._place / "private",
            "facts": self._place / "facts",
            "node-root": self._place / "root",
            "max-devices": 3,
        }
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "virtfleet.handler"),
            *(f"--{flag}={value}" for flag, value in flags.items()),
            env=self._environment,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def ask(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"https://localhost:{self.port}{path}", ssl=self._trust) as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectionError:
                return 0, ""

    async def pause(self, caller: str) -> int:
        """The code of the answer to one who would pause a VM that is not there."""
        credential = self.authority.issue(Profile(caller, LIFESPAN, client=True))
        context = certificates.client_context(self.authority.bundle, credential)
        url = f"https://localhost:{self.port}/v1/namespaces/default/virtualmachineinstances/none/pause"
        async with aiohttp.ClientSession() as session, session.put(url, ssl=context) as answer:
            return answer.status

    async def ready(self, wanted: int = 200) -> str:
        """What /readyz says, as soon as it answers with this status."""
        async with asyncio.timeout(30):
            while True:
                status, text = await self.ask("/readyz")
                if status == wanted:
                    return text
                await asyncio.sleep(0.05)


def label(server: ScriptedServer) -> str:
    return str(server.stored(NODES)[0]["metadata"]["labels"].get(names.SCHEDULABLE))


@pytest.mark.slow
async def test_a_handler_serves_its_node_and_leaves_it_in_order(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    server.put(KUBEVIRTS, {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
    async with Handler(place, server, "handler-a") as handler:
        await handler.ready()
        await eventually((place / "kubelet/seccomp/kubevirt/kubevirt.json").exists)
        assert (await handler.ask("/healthz"))[0] == 200
        assert "kubevirt_workqueue_depth" in (await handler.ask("/metrics"))[1]
        assert await handler.pause("default:virt-api") == 404
        assert await handler.pause("elsewhere:virt-api") == 403
        await eventually(lambda: label(server) == "true")
        await eventually(lambda: kubelet.offers().get("devices.kubevirt.io/tun") == (3, 3))
        handler.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(handler.process.wait(), 60) == 0
        assert label(server) == "false"
        assert not list((place / "kubelet/device-plugins").glob("kubevirt-*"))


@pytest.mark.slow  # as long as a handler waits before it says so
async def test_a_handler_without_the_api_server_says_that_it_is_not_ready_and_serves_its_vms(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    async with Handler(place, server, "handler-a") as handler:
        await handler.ready()
        await server.stop()
        assert await handler.ready(503) == f"the API server has not answered for {OUT_OF_TOUCH:.0f} s"
        assert (await handler.ask("/livez"))[0] == 200, "nobody is to end it"
        assert await handler.pause("default:virt-api") == 404, "it would, were the VM there"
        await server.start()
        await handler.ready()


@pytest.mark.slow
async def test_a_handler_of_an_installation_that_goes_leaves_nothing_but_records_of_vms(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    deleted = {"name": "kubevirt", "namespace": "kubevirt", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    server.put(KUBEVIRTS, {"metadata": deleted})
    (place / "facts/emulators").mkdir(parents=True)
    record = place / "private/record-of-a-vm/one"
    record.parent.mkdir(parents=True)
    record.touch()
    async with Handler(place, server, "handler-a") as handler:
        await handler.ready()
        handler.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(handler.process.wait(), 60) == 0
    assert list((place / "facts").iterdir()) == []
    assert list((place / "private").iterdir()) == [record.parent] and record.exists()


@pytest.mark.slow
async def test_of_two_handlers_one_serves_and_the_other_takes_over(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    async with Handler(place, server, "handler-a") as first:
        await first.ready()
        async with Handler(place, server, "handler-b") as second:
            assert "handler-a" in await second.ready(503)
            assert await second.pause("default:virt-api") == 503
            first.process.kill()
            await second.ready()
            await eventually(lambda: label(server) == "true")


@pytest.mark.slow
async def test_one_that_waits_knows_what_is_recorded_when_it_takes_over_and_not_before(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    (place / "kubelet/pods").mkdir(parents=True, exist_ok=True)
    records = place / "private/ghost-records"
    async with Handler(place, server, "handler-a") as first:
        await first.ready()
        async with Handler(place, server, "handler-b") as second:
            assert "handler-a" in await second.ready(503)
            # Written by the one that serves, while the other one waits; by the name that earlier versions gave it.
            VmRecords(records).add(VmRecord(namespace="default", name="vm", uid="u", pod="gone"))
            (records / "gone.json").rename(records / "u.json")
            await second.ready(503)
            assert [path.name for path in records.iterdir()] == ["u.json"], "what is another's is not touched"
            first.process.send_signal(signal.SIGTERM)
            await second.ready()
            await eventually(lambda: not list(records.iterdir()))  # its Pod is gone, so nothing is left of it


@pytest.mark.slow
async def test_a_stand_in_serves_until_an_operator_of_another_version_has_come(
    place: Path, server: ScriptedServer, kubelet: Kubelet
) -> None:
    kubevirt = {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}}
    server.put(KUBEVIRTS, {**kubevirt, "status": {"operatorVersion": virtfleet.__version__}})
    async with Handler(place, server, "stand-in", **{names.STAND_IN_VARIABLE: "true"}) as handler:
        await handler.ready()
        async with Handler(place, server, "handler-a") as other:
            assert "stand-in" in await other.ready(503)
            server.put(KUBEVIRTS, {**kubevirt, "status": {"operatorVersion": "0.0.1"}})
            assert await asyncio.wait_for(handler.process.wait(), 60) == 0
            await other.ready()
