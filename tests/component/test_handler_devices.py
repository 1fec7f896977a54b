"""The handler's device plugins against the local node's own side of the kubelet's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kube_fixtures import eventually

from virtfleet.handler.devices import host as hostdevices
from virtfleet.handler.devices import plugin
from virtfleet.handler.devices.host import Source, Unit
from virtfleet.handler.devices.plugin import Devices
from virtfleet.local.node import devices
from virtfleet.local.node.devices import AdmissionRefused
from virtfleet.local.node.devices import Devices as Kubelet

TUN = "devices.kubevirt.io/tun"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "LOOK", 0.02)


@asynccontextmanager
async def kubelet(place: Path) -> AsyncIterator[Kubelet]:
    found = Kubelet(place / "plugins", lambda: None)
    server = await found.start()
    try:
        yield found
    finally:
        await found.stop()
        await server.stop(None)


@asynccontextmanager
async def plugins(place: Path, *more: Source) -> AsyncIterator[Devices]:
    """The plugins of a node whose /dev is a directory."""

    def sources() -> list[Source]:
        return [*hostdevices.shared(place, 2, lambda _: True), *more]

    devices = Devices(place / "plugins", sources, lambda: None)
    task = asyncio.create_task(devices.run())
    try:
        yield devices
    finally:
        task.cancel()
        await asyncio.wait([task])


def pod(resource: str, count: int = 1) -> dict[str, object]:
    container = {"name": "compute", "resources": {"limits": {resource: count}}}
    return {"metadata": {"uid": f"uid-{resource}-{count}"}, "spec": {"containers": [container]}}


def add_tun(place: Path) -> Path:
    node = place / "dev/net/tun"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()
    return node


async def test_a_device_is_offered_and_handed_out(place: Path) -> None:
    add_tun(place)
    async with kubelet(place) as node, plugins(place) as devices:
        await eventually(lambda: node.offers().get(TUN) == (2, 2))
        assert devices.ready()
        await node.admit(pod(TUN))
        (got,) = node.of(f"uid-{TUN}-1", "compute")
        assert got.devices == [("/dev/net/tun", "/dev/net/tun", "mrw")]


async def test_a_device_that_appears_later_is_offered_then_and_withdrawn_when_it_goes(place: Path) -> None:
    async with kubelet(place) as node, plugins(place) as devices:
        await eventually(devices.ready)
        assert node.offers() == {}
        tun = add_tun(place)
        await eventually(lambda: node.offers().get(TUN) == (2, 2))
        tun.unlink()
        await eventually(lambda: node.offers().get(TUN) == (2, 0))


async def test_plugins_register_again_when_the_kubelet_restarts(place: Path) -> None:
    add_tun(place)
    async with plugins(place) as devices:
        async with kubelet(place) as node:
            await eventually(lambda: node.offers().get(TUN) == (2, 2))
        async with kubelet(place) as node:
            await eventually(lambda: node.offers().get(TUN) == (2, 2))
            assert devices.ready()


async def test_a_plugin_whose_socket_was_removed_says_so_and_registers_again(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_tun(place)
    async with kubelet(place) as node, plugins(place):
        await eventually(lambda: node.offers().get(TUN) == (2, 2))
        (place / "plugins/kubevirt-tun.sock").unlink()
        said = "device socket file for device tun was removed, kubelet probably restarted."
        await eventually(lambda: said in caplog.text)
        await eventually((place / "plugins/kubevirt-tun.sock").exists)


async def test_without_a_kubelet_the_node_is_not_ready(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_tun(place)
    (place / "plugins").mkdir()
    async with plugins(place) as devices:
        await eventually(lambda: f"device plugin {TUN}: " in caplog.text)
        assert not devices.ready()


async def test_containers_are_told_the_addresses_of_their_devices(place: Path) -> None:
    units = {"7": Unit(True, ("/dev/vfio/vfio", "/dev/vfio/7"), "0000:65:00.0", numa=1)}
    gpu = Source("nvidia.com/T4", lambda: units, "PCI_RESOURCE_NVIDIA_COM_T4")
    async with kubelet(place) as node, plugins(place, gpu):
        await eventually(lambda: node.offers().get("nvidia.com/T4") == (1, 1))
        await node.admit(pod("nvidia.com/T4"))
        (got,) = node.of("uid-nvidia.com/T4-1", "compute")
        assert got.envs == {"PCI_RESOURCE_NVIDIA_COM_T4": "0000:65:00.0"}
        assert [host for host, _, _ in got.devices] == ["/dev/vfio/vfio", "/dev/vfio/7"]


async def test_an_unhealthy_device_is_not_handed_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_RETURN", 0.2)
    broken = Source("nvidia.com/T4", lambda: {"7": Unit(False, ("/dev/vfio/7",))})
    async with kubelet(place) as node, plugins(place, broken):
        await eventually(lambda: node.offers().get("nvidia.com/T4") == (1, 0))
        with pytest.raises(AdmissionRefused):
            await node.admit(pod("nvidia.com/T4"))


async def test_a_pretended_vsock_reaches_the_pod_that_asks_for_it(place: Path) -> None:
    resource = "devices.kubevirt.io/vhost-vsock"
    (place / "dev").mkdir()
    (place / "dev/vhost-vsock").touch()
    async with kubelet(place) as node, plugins(place):
        await eventually(lambda: node.offers().get(resource) == (2, 2))
        await node.admit(pod(resource))
        (got,) = node.of(f"uid-{resource}-1", "compute")
        assert got.devices == [("/dev/vhost-vsock", "/dev/vhost-vsock", "mrw")]
