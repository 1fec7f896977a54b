"""A real guest that a handler prepares, starts, reports and ends. Only the Pod around its launcher is made up."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from component.handler_kit import api_server, handler
from component.pod_member import PodGroup
from virtfleet.api import names
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.handler.devices import access as deviceaccess
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.handler.vms import preparation
from virtfleet.hypervisors import registry
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.launcher.alone.standalone import Standalone
from vm.guests import admitted, eventually, guest, machine

EMULATED = {"spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}}}


@pytest.fixture
def cluster() -> Iterator[int]:
    """A network namespace that stands for the cluster, by its process."""
    process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox shares most of /dev with this machine: touch nothing but what is its own, and use no KVM."""
    monkeypatch.setattr(deviceaccess, "_NODES", ("net/tun",))
    monkeypatch.setattr(preparation, "emulated", lambda *_: True)


@asynccontextmanager
async def pod(place: Path, vmi: Obj, cluster: int) -> AsyncIterator[Standalone]:
    """A launcher in a sandbox, with an interface to the cluster and its directories where a kubelet has them."""
    group = PodGroup("pod-guest")
    async with Standalone(vmi, registry.get("qemu-kvm"), Context(), {"root": guest().image}) as standalone:
        sandbox = standalone.sandbox
        standalone.link_volumes({"root": guest().image})
        await sandbox.start()
        group.add_tree(await sandbox._first_process())
        for command in (
            f"link add eth0 type veth peer name toPod netns {cluster}",
            "link set lo up",
            "link set eth0 up",
            "addr add 10.9.0.7/24 dev eth0",
            "addr add fd09::7/64 dev eth0 nodad",
            "route add default via 10.9.0.1",
        ):
            await sandbox.run("ip", *command.split())
        volumes = place / "pods/pod-guest" / VOLUMES
        volumes.mkdir(parents=True)
        (volumes / "sockets").symlink_to(sandbox.path(paths.SOCKETS))
        (volumes / "private").symlink_to(sandbox.path(paths.PRIVATE))
        yield standalone
    group.remove()


async def inside(cluster: int, *command: str) -> str:
    """What a command prints in the cluster's network."""
    enter = ("nsenter", f"--net=/proc/{cluster}/ns/net")
    process = await asyncio.create_subprocess_exec(
        *enter, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await process.communicate()
    return out.decode()


async def fetched(cluster: int) -> str:
    """What the guest's web server says to somebody in the cluster."""
    script = "from urllib.request import urlopen; print(urlopen('http://10.9.0.7/', timeout=5).read().decode(), end='')"
    return await inside(cluster, sys.executable, "-c", script)


async def default_route6(launched: Standalone) -> bool:
    """Whether the guest says that it has a default route by IPv6."""
    reader, writer = await asyncio.open_unix_connection(launched.console)
    try:
        writer.write(b"ip -6 route\n")
        async with asyncio.timeout(2):
            await reader.readuntil(b"default via fe80:")
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


async def test_a_pod_is_made_ready_for_a_guest_that_comes_from_another_node(
    place: Path, cluster: int, own_devices: None, caplog: pytest.LogCaptureFixture
) -> None:
    """By a real launcher: all that a start would find is there, and there is no domain."""
    async with api_server(place) as api:
        wanted = admitted(machine())
        wanted["metadata"] |= {"labels": {names.NODE_NAME: "n2", names.MIGRATION_TARGET_NODE: "n1"}}
        wanted["status"] = {
            "phase": "Running",
            "nodeName": "n2",
            "activePods": {"pod-there": "n2", "pod-guest": "n1"},
            "migrationState": {"migrationUid": "m1", "sourceNode": "n2", "targetNode": "n1"},
        }
        stored = await api.create(VMIS, wanted)
        with caplog.at_level(logging.INFO):
            async with pod(place, stored, cluster) as launched, handler(api, place, EMULATED):
                await eventually(lambda: "the Pod is ready for the guest" in caplog.text)
                links = await launched.sandbox.run("ip", "-o", "link")
                assert "tap0" in links and "k6t-eth0" in links
                assert launched.sandbox.path(paths.ephemeral_disk("root")).exists()
                assert not launched.console.exists(), "nothing was started"
                process = launched.sandbox.process
                assert process is not None and process.returncode is None
                await api.patch(VMIS, "guest", {"status": {"migrationState": {"failed": True}}}, "default")
                assert await asyncio.wait_for(process.wait(), 60) is not None
                await eventually(lambda: not list((place / "records").iterdir()))
        assert (await api.get(VMIS, "guest", "default"))["status"]["phase"] == "Running", "the guest runs on elsewhere"


async def test_a_guest_is_reached_survives_its_handler_and_shuts_down(
    place: Path, cluster: int, own_devices: None
) -> None:
    async with api_server(place) as api:
        wanted = admitted(machine())
        wanted["metadata"] |= {"labels": {names.NODE_NAME: "n1"}, "finalizers": [names.VMI_FINALIZER]}
        wanted["status"] = {"phase": "Scheduled", "nodeName": "n1", "activePods": {"pod-guest": "n1"}}
        stored = await api.create(VMIS, wanted)

        async def in_phase(phase: str) -> Obj | None:
            found = await api.get(VMIS, "guest", "default")
            return found if found["status"]["phase"] == phase else None

        async with pod(place, stored, cluster) as launched:
            await inside(cluster, "ip", "link", "set", "toPod", "up")
            await inside(cluster, "ip", "addr", "add", "10.9.0.1/24", "dev", "toPod")
            async with handler(api, place, EMULATED):
                running = await eventually(lambda: in_phase("Running"))
                assert running
                (interface,) = running["status"]["interfaces"]
                assert (interface["ipAddress"], interface["infoSource"]) == ("10.9.0.7", "domain")
                assert "SoftwareEmulation" in {c["type"] for c in running["status"]["conditions"]}
                hello = await eventually(lambda: fetched(cluster))
                assert hello == "hello from guest at 10.0.2.2\n"
                assert await eventually(lambda: default_route6(launched)), "by router advertisement"
            assert await fetched(cluster) == hello, "without a handler"
            async with handler(api, place, EMULATED):
                await api.delete(VMIS, "guest", "default")
                await eventually(lambda: in_phase("Succeeded"))
