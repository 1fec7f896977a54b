"""A real guest that two handlers move from one node to the other, through TLS; only the Pods are made up."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from handler_kit import api_server, handler
from pod_member import PodGroup
from test_handler_reconcile import phase, until

from component.moving import Listener, Place, counted, counting, image
from tests.waiting import eventually
from virtfleet.api import names
from virtfleet.domain import paths
from virtfleet.handler.devices import access as deviceaccess
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.handler.vms import preparation
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.work.tasks import held

pytestmark = pytest.mark.slow  # real guests

EMULATED = {"spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}}}


@pytest.fixture(autouse=True)
def own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox shares most of /dev with this machine: touch nothing but what is its own, and use no KVM."""
    monkeypatch.setattr(deviceaccess, "_NODES", ())
    monkeypatch.setattr(preparation, "emulated", lambda *_: True)


@asynccontextmanager
async def pod(place: Path, name: str, vmi: Obj, disk: Path, cache: Path) -> AsyncIterator[Place]:
    """A launcher in a sandbox, with its directories where a kubelet has them."""
    group = PodGroup(name)
    async with Place(vmi, disk, cache) as made:
        made.link_volumes({"root": disk})
        await made.sandbox.start()
        group.add_tree(await made.sandbox._first_process())
        volumes = place / "pods" / name / VOLUMES
        volumes.mkdir(parents=True)
        (volumes / "sockets").symlink_to(made.sandbox.path(paths.SOCKETS))
        (volumes / "private").symlink_to(made.sandbox.path(paths.PRIVATE))
        yield made
    group.remove()


async def scheduled(api: InProcessApi) -> Obj:
    """A VMI without networks, handed over to n1."""
    wanted = counting(interfaces=[], autoattachPodInterface=False)
    del wanted["metadata"]["uid"], wanted["spec"]["networks"]
    wanted["metadata"] |= {"namespace": "default", "name": "vm", "labels": {names.NODE_NAME: "n1"}}
    status = {"phase": "Scheduled", "nodeName": "n1", "activePods": {"pod-a": "n1"}}
    return await api.create(
        VMIS, {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", **wanted, "status": status}
    )


async def begin(api: InProcessApi, **options: Any) -> None:
    """As the controller does, when the Pod of the target is there."""
    state = {"migrationUid": "m1", "sourceNode": "n1", "targetNode": "n2", "sourcePod": "p-a", "targetPod": "p-b"}
    status = {"activePods": {"pod-b": "n2"}, "migrationState": {**state, "migrationConfiguration": options}}
    labels = {names.MIGRATION_TARGET_NODE: "n2"}
    await api.patch(VMIS, "vm", {"metadata": {"labels": labels}, "status": status}, "default")


@pytest.mark.parametrize("plain", [False, True], ids=["tls", "plain"])
async def test_a_guest_goes_to_another_node_and_counts_on(
    place: Path, plain: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chmod(place, 0o755)
    disk, cache = image(place / "disk.img"), place / "emulators"
    async with api_server(place) as api, AsyncExitStack() as stack:
        vmi = await scheduled(api)
        source = await stack.enter_async_context(pod(place / "a", "pod-a", vmi, disk, cache))
        for node, where in (("n1", "a"), ("n2", "b")):
            await stack.enter_async_context(handler(api, place / where, EMULATED, node=node))
        await phase(api, "Running")
        await asyncio.to_thread(eventually, lambda: len(counted(source.said)) > 20)
        target = await stack.enter_async_context(pod(place / "b", "pod-b", vmi, disk, cache))
        listeners = [Listener(each) for each in (source, target)]
        listening = [held(listener.run(), "listen") for listener in listeners]
        await begin(api, disableTLS=plain)
        seen = await until(api, lambda status: status["nodeName"] == "n2" or status["migrationState"].get("failed"))
        assert "failed" not in seen["status"]["migrationState"], seen["status"]["migrationState"]
        assert seen["status"]["migrationState"]["completed"]
        assert not source.processes("qemu-system")
        before = len(counted(source.said, target.said))
        await asyncio.to_thread(eventually, lambda: len(counted(source.said, target.said)) > before + 20)
        counts = counted(source.said, target.said)
        assert counts == list(range(1, len(counts) + 1))
        pause = listeners[1].first - listeners[0].last
        with capsys.disabled():
            sys.stdout.write(f"\nthe guest stood still for {1000 * pause:.0f} ms\n")
        for task in listening:
            task.cancel()
        assert (await api.get(VMIS, "vm", "default"))["status"]["phase"] == "Running"
