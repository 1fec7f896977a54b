"""VMs on their way to a node: their Pods are made ready and left alone, and nothing of them is ended by mistake."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from handler_kit import handler, scheduled
from handler_launcher import FakeLauncher, launcher
from kube_fixtures import eventually
from test_handler_reconcile import phase, reasons, until, vmi

from component.namespaces import Namespace
from virtfleet.api import names
from virtfleet.handler.vms.records import VmRecords
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.messages import Status

READY = "the Pod is ready for the guest"
ROUNDS = 20


async def coming(api: InProcessApi, place: Path, name: str = "vm", **migration: Any) -> Obj:
    """A VMI that runs on node n2 and is to come here, to the Pod whose directory there is."""
    await scheduled(api, place, name)
    labels = {names.NODE_NAME: "n2", names.MIGRATION_TARGET_NODE: "n1"}
    state = {"migrationUid": "m1", "sourceNode": "n2", "targetNode": "n1", "targetPod": f"virt-launcher-{name}-b"}
    status = {
        "phase": "Running",
        "nodeName": "n2",
        "activePods": {"pod-there": "n2", f"pod-{name}": "n1"},
        "migrationState": {**state, **migration},
    }
    return await api.patch(VMIS, name, {"metadata": {"labels": labels}, "status": status}, "default")


async def migration(api: InProcessApi, **state: Any) -> None:
    await api.patch(VMIS, "vm", {"status": {"migrationState": state}}, "default")


def records(place: Path) -> list[str]:
    return [record.pod for record in VmRecords(place / "records").all()]


async def test_the_pod_is_made_ready_and_nothing_is_started(
    api: InProcessApi, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await coming(api, place)
    with caplog.at_level(logging.INFO):
        async with handler(api, place) as vms, launcher(place / "pods/pod-vm") as real:
            await eventually(lambda: READY in caplog.text)
            assert real.asked == ["Prepare"]
            assert real.prepared[0].vmi, "all that a start would be told"
            assert real.updates.latest.state.status is Status.ABSENT
            assert vms.running("default/vm") is None, "nobody is let in to a guest that is not here"
            assert records(place) == ["pod-vm"]
            said = (await until(api, lambda status: "targetNodeAddress" in status["migrationState"]))["status"]
            assert (said["phase"], said["nodeName"]) == ("Running", "n2")
            assert said["migrationState"]["targetNodeAddress"] == "127.0.0.1"
            assert [*said["migrationState"]["targetDirectMigrationNodePorts"].values()] == [0]


async def test_a_target_is_not_ended_although_its_vmi_is_elsewhere(api: InProcessApi, place: Path) -> None:
    """By the handler that prepared it, by one that finds its record, nor on the word of a cache without the VMI."""
    await coming(api, place)
    async with launcher(place / "pods/pod-vm") as real:
        async with handler(api, place):
            await eventually(lambda: real.asked == ["Prepare"])
        async with handler(api, place) as vms:
            await eventually(lambda: real.asked == ["Prepare", "Prepare"])
            vms.instance = lambda _: None  # type: ignore[method-assign]
            for _ in range(5):
                await vms.reconcile("default/vm/pod-vm")
        assert real.asked == ["Prepare", "Prepare"]


@pytest.mark.parametrize("end", [{"failed": True, "endTimestamp": "2026-01-01T00:00:00Z"}, {"failed": True}])
async def test_a_target_goes_when_its_migration_failed(api: InProcessApi, place: Path, end: dict[str, Any]) -> None:
    await coming(api, place)
    async with handler(api, place):
        real = FakeLauncher(place / "pods/pod-vm")
        await real.start()
        await eventually(lambda: real.asked == ["Prepare"])
        await migration(api, **end)
        await eventually(lambda: real.asked[1:] == ["Kill"])
        await real.end()
        await eventually(lambda: not records(place))
    assert (await vmi(api))["status"]["phase"] == "Running", "the VM runs on where it is"


async def test_a_target_goes_with_its_vm(api: InProcessApi, place: Path) -> None:
    await coming(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        await eventually(lambda: real.asked == ["Prepare"])
        await api.delete(VMIS, "vm", "default")
        await api.patch(VMIS, "vm", {"status": {"phase": "Failed"}}, "default")
        await eventually(lambda: "Kill" in real.asked)  # perhaps twice: once for each change that it hears of
        assert set(real.asked) == {"Prepare", "Kill"}


async def test_a_vm_that_was_handed_over_is_this_nodes(api: InProcessApi, place: Path) -> None:
    """The same Pod has another role as soon as the VMI says so, and its guest is not started a second time."""
    await coming(api, place)
    async with handler(api, place) as vms, launcher(place / "pods/pod-vm") as real:
        await eventually(lambda: real.asked == ["Prepare"])
        real.becomes(Status.RUNNING, name="default_vm", uuid="u")
        handed_over = {
            "metadata": {"labels": {names.NODE_NAME: "n1", names.MIGRATION_TARGET_NODE: None}},
            "status": {"nodeName": "n1", "migrationState": {"completed": True, "endTimestamp": "2026-01-01T00:00:00Z"}},
        }
        await api.patch(VMIS, "vm", handed_over, "default")
        await eventually(lambda: real.asked == ["Prepare", "Sync"])
        assert vms.running("default/vm")
        await api.delete(VMIS, "vm", "default")
        await phase(api, "Succeeded")


async def test_what_cannot_be_prepared_is_told_without_touching_the_status(api: InProcessApi, place: Path) -> None:
    before = await coming(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        real.refusal = "this node has no machine type 'pc-q35-2.4'"
        await reasons(api, "SyncFailed")
        assert (await vmi(api))["status"] == before["status"]
        real.refusal = ""
        await eventually(lambda: real.prepared)


async def test_of_a_vm_that_came_back_only_the_later_pod_speaks(api: InProcessApi, place: Path) -> None:
    """The Pod from which it left may be here still, and its end is not the VM's."""
    obj = await scheduled(api, place)
    old = FakeLauncher(place / "pods/pod-vm")
    await old.start()
    (place / "pods/pod-back").mkdir()
    async with handler(api, place), launcher(place / "pods/pod-back") as new:
        await phase(api, "Running")
        await api.patch(VMIS, "vm", {"status": {"activePods": {"pod-back": "n1"}}}, "default")
        await eventually(lambda: new.asked == ["Sync"])
        await old.die()
        new.becomes(Status.PAUSED, "User")
        await eventually(lambda: records(place) == ["pod-back"])
        said = (await vmi(api))["status"]
        assert (said["phase"], said["nodeName"]) == ("Running", "n1")
        assert old.asked == ["Sync"], f"of VMI {obj['metadata']['uid']}"


async def test_handlers_that_end_at_any_moment_leave_nothing_of_a_target(api: InProcessApi, place: Path) -> None:
    """Between the record, the preparation and the report: what was begun is gone on with, and in the end removed."""
    chance = random.Random(11)
    await coming(api, place)
    real = FakeLauncher(place / "pods/pod-vm")
    await real.start()
    for _ in range(ROUNDS):
        async with handler(api, place):
            await asyncio.sleep(chance.uniform(0, 0.06))
    async with handler(api, place):
        await eventually(lambda: real.prepared)
    assert set(real.asked) == {"Prepare"}
    await migration(api, failed=True)
    for _ in range(ROUNDS // 2):
        async with handler(api, place):
            await asyncio.sleep(chance.uniform(0, 0.06))
    async with handler(api, place):
        await eventually(lambda: real.updates.latest.state.status.ended)
        await real.end()
        shutil.rmtree(real.pod)
        await eventually(lambda: not records(place))
    assert not list((place / "networks").glob("*"))


async def test_no_vm_comes_to_a_node_that_is_not_on_the_network_of_migrations(api: InProcessApi, place: Path) -> None:
    await coming(api, place, migrationConfiguration={"network": "kubevirt/fast"})
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        ended = await until(api, lambda v: v["migrationState"].get("failed"))
        state = ended["status"]["migrationState"]
        assert "node n1 is not on network kubevirt/fast" in state["failureReason"]
        assert "targetNodeAddress" not in state, "the source has nobody to send to"
        assert "Prepare" not in real.asked


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_address_on_the_network_of_migrations_is_that_of_its_interface() -> None:
    ask = "import asyncio; from virtfleet.handler.migration import proxy; print(asyncio.run(proxy.dedicated_address()))"
    pod = Namespace()
    try:
        assert pod.run(sys.executable, "-c", ask).stdout == "\n", "there is no such interface"
        pod.ip("link add migration0 type bridge")
        assert pod.run(sys.executable, "-c", ask).stdout == "\n", "it has no address that others can reach"
        pod.ip("addr add 10.77.0.5/24 dev migration0")
        assert pod.run(sys.executable, "-c", ask).stdout == "10.77.0.5\n"
    finally:
        pod.close()
