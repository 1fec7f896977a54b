"""The kubelet's device-plugin protocol, against a plugin written with nothing but grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from node_cluster import NodeCluster, needs_root, node_cluster

from virtfleet.kube.deviceplugin import HEALTHY, UNHEALTHY, VERSION, caller, channel, handler, message
from virtfleet.kube.resource import NODES

pytestmark = [needs_root, pytest.mark.slow]
RESOURCE = "vendor.example/gadget"


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start(devices={"superduper.io/MegaSlop_9000": 2})
        yield made


class Plugin:
    """Two gadgets, each of them /dev/zero under another name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.health = {"g0": HEALTHY, "g1": HEALTHY}
        self.changed = asyncio.Event()
        self.allocated: list[list[str]] = []
        self.options = message("DevicePluginOptions")
        self.ends: asyncio.Event | None = None

    async def start(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler("DevicePlugin", self),))
        server.add_insecure_port(f"unix://{self._directory}/gadget.sock")
        await server.start()
        async with channel(Path(self._directory, "kubelet.sock")) as kubelet:
            request = message("RegisterRequest", version=VERSION, endpoint="gadget.sock", resource_name=RESOURCE)
            await caller(kubelet, "Registration", "Register")(request)
        return server

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            self.changed.clear()
            devices = [message("Device", ID=name, health=health) for name, health in self.health.items()]
            yield message("ListAndWatchResponse", devices=devices)
            await self.changed.wait()

    async def Allocate(self, request: Any, context: Any) -> Any:
        if self.ends:
            self.ends.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it has ended")
        (wanted,) = request.container_requests
        self.allocated.append(list(wanted.devices_ids))
        answer = message(
            "ContainerAllocateResponse",
            envs={"GADGET": ",".join(wanted.devices_ids)},
            mounts=[message("Mount", host_path="/etc/hostname", container_path="/gadget/name", read_only=True)],
            devices=[message("DeviceSpec", host_path="/dev/zero", container_path="/dev/gadget", permissions="rw")],
        )
        return message("AllocateResponse", container_responses=[answer])

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return self.options


async def offered(cluster: NodeCluster, resource: str, capacity: str, allocatable: str) -> None:
    async def look() -> bool:
        status = (await cluster.api.get(NODES, "n1")).get("status") or {}
        return (status.get("capacity", {}).get(resource), status.get("allocatable", {}).get(resource)) == (
            capacity,
            allocatable,
        )

    await cluster.eventually(look)


def asking(resource: str, count: int = 1) -> dict[str, Any]:
    return {"container": {"resources": {"limits": {resource: str(count)}}}}


async def test_devices_and_environment_of_a_plugin_reach_the_container_that_asked(cluster: NodeCluster) -> None:
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    server = await plugin.start()
    await offered(cluster, RESOURCE, "2", "2")
    script = "echo $GADGET; head -c 3 /dev/gadget | wc -c; cat /gadget/name"
    text = await cluster.output("p", script, **asking(RESOURCE))
    assert text.splitlines()[:2] == ["g0", "3"]
    assert plugin.allocated == [["g0"]]

    without = await cluster.output("q", "ls /dev/gadget 2>&1; echo x$GADGET", container={})
    assert "No such file" in without and without.endswith("x")
    await server.stop(None)


async def test_a_pod_of_a_node_that_just_started_waits_for_plugins_that_come_again(cluster: NodeCluster) -> None:
    """A launcher whose node's agent was started anew would fail for good otherwise, and its VMI with it."""
    await cluster.run("p", "echo $GADGET; sleep 600", **asking(RESOURCE))
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    server = await plugin.start()
    await cluster.phase("p", "Running")
    assert plugin.allocated == [["g0"]]
    await server.stop(None)


async def test_a_plugin_that_ends_when_it_is_asked_is_asked_again_once_it_is_back(cluster: NodeCluster) -> None:
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    plugin.ends = asyncio.Event()
    server = await plugin.start()
    await cluster.run("p", "sleep 600", **asking(RESOURCE))
    await asyncio.wait_for(plugin.ends.wait(), 30)
    await server.stop(None)
    plugin.ends = None
    server = await plugin.start()
    await cluster.phase("p", "Running")
    assert plugin.allocated == [["g0"]]
    await server.stop(None)


async def test_unhealthy_devices_leave_allocatable_and_are_not_given_away(cluster: NodeCluster) -> None:
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    server = await plugin.start()
    await offered(cluster, RESOURCE, "2", "2")
    plugin.health["g1"] = UNHEALTHY
    plugin.changed.set()
    await offered(cluster, RESOURCE, "2", "1")
    assert await cluster.output("p", "echo $GADGET", **asking(RESOURCE)) == "g0"
    await cluster.run("q", "true", **asking(RESOURCE, 2))
    pod = await cluster.phase("q", "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 2, Available: 1" in pod["status"]["message"]
    await server.stop(None)
    await offered(cluster, RESOURCE, "2", "0")
    server = await plugin.start()
    await offered(cluster, RESOURCE, "2", "1")
    await server.stop(None)


async def test_what_was_given_away_stays_so_over_a_restart_of_the_agent(cluster: NodeCluster) -> None:
    await offered(cluster, "superduper.io/MegaSlop_9000", "2", "2")
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always", **asking("superduper.io/MegaSlop_9000"))
    await cluster.ready("p")
    await cluster.stop()
    await cluster.start(devices={"superduper.io/MegaSlop_9000": 2})
    await offered(cluster, "superduper.io/MegaSlop_9000", "2", "2")
    text = await cluster.output(
        "q", "echo $PRETEND_RESOURCE_SUPERDUPER_IO_MEGASLOP_9000", **asking("superduper.io/MegaSlop_9000")
    )
    assert text == "superduper-io-megaslop-9000-1", "the other one is p's"
    await cluster.delete("p")


async def test_a_plugin_that_registers_with_a_restarted_agent_finds_its_devices_where_they_were(
    cluster: NodeCluster,
) -> None:
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    server = await plugin.start()
    await offered(cluster, RESOURCE, "2", "2")
    await cluster.run("p", "exec sleep 1000", restartPolicy="Always", **asking(RESOURCE))
    await cluster.ready("p")
    await cluster.stop()
    await server.stop(None)
    await cluster.start()
    assert not (cluster.layout().kubelet / "device-plugins/gadget.sock").exists(), "that is how plugins notice"
    server = await plugin.start()
    await offered(cluster, RESOURCE, "2", "2")
    assert await cluster.output("q", "echo $GADGET", **asking(RESOURCE)) == "g1", "g0 is still p's"
    assert plugin.allocated == [["g0"], ["g1"]], "an adopted container is not allotted its device again"
    await cluster.delete("p")
    await server.stop(None)


async def test_a_plugin_that_wants_to_prepare_each_device_is_told_that_nobody_would_ask(cluster: NodeCluster) -> None:
    plugin = Plugin(cluster.layout().kubelet / "device-plugins")
    plugin.options = message("DevicePluginOptions", pre_start_required=True)
    with pytest.raises(grpc.aio.AioRpcError, match="PreStartContainer"):
        await plugin.start()


async def test_a_plugin_that_does_not_tell_its_options_is_refused_as_by_any_kubelet(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Plugin, "GetDevicePluginOptions")
    with pytest.raises(grpc.aio.AioRpcError, match="failed to get device plugin options"):
        await Plugin(cluster.layout().kubelet / "device-plugins").start()
