"""VMs on a node, from the hand-over to the end: a real API server, real command sockets, domains that are pretended."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from handler_kit import handler, scheduled
from handler_launcher import FakeLauncher, launcher
from kube_fixtures import eventually

from virtfleet.api import names
from virtfleet.handler.vms import work
from virtfleet.handler.vms.records import VmRecord, VmRecords
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import EVENTS, VMIS, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.pods.networks import pod_interface
from virtfleet.protocol.messages import GuestInfo, Status
from virtfleet.work.commands import run

DEADLINE = 20.0


async def vmi(api: InProcessApi, name: str = "vm") -> Obj:
    return await api.get(VMIS, name, "default")


async def until(api: InProcessApi, condition: Any, name: str = "vm") -> Obj:
    """The VMI, as soon as the condition holds for its status."""
    seen: Obj = {}
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                seen = await vmi(api, name)
                if condition(seen["status"]):
                    return seen
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"did not come true; last: {seen['status']}") from None


async def phase(api: InProcessApi, wanted: str, name: str = "vm") -> Obj:
    return await until(api, lambda status: status["phase"] == wanted, name)


async def reasons(api: InProcessApi, *wanted: str) -> None:
    async with asyncio.timeout(DEADLINE):
        missing = set(wanted)
        async with api.watch(EVENTS, "default") as events:
            async for event in events:
                missing.discard(orjson.loads(event.object)["reason"])
                if not missing:
                    return


def condition(obj: Obj, kind: str) -> Obj | None:
    return next((c for c in obj["status"].get("conditions") or () if c["type"] == kind), None)


async def test_a_vm_is_started_and_reported(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        found = await phase(api, "Running")
        assert len(real.synced) == 1
        assert condition(found, "LiveMigratable")
        await reasons(api, "Created", "Started")
        assert [t["phase"] for t in found["status"]["phaseTransitionTimestamps"]] == ["Running"]


async def test_a_running_vm_costs_one_write(api: InProcessApi, place: Path) -> None:
    before = await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm"):
        found = await phase(api, "Running")
        # The object counts its changes, because those of its status are changes of the object.
        assert found["metadata"]["generation"] == before["metadata"]["generation"] + 1
        await reasons(api, "Started")
        assert (await vmi(api))["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


async def test_a_handler_that_restarts_disturbs_nobody(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with launcher(place / "pods/pod-vm") as real:
        async with handler(api, place):
            version = (await phase(api, "Running"))["metadata"]["resourceVersion"]
            await reasons(api, "Started")
        async with handler(api, place):
            await eventually(lambda: len(real.synced) == 2)
            real.becomes(Status.PAUSED, "User")
            found = await until(api, lambda status: condition({"status": status}, "Paused"))
        assert int(found["metadata"]["resourceVersion"]) > int(version)
        assert real.asked == ["Sync", "Sync"]


async def test_deleting_a_vmi_shuts_its_guest_down(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place) as vms:
        real = FakeLauncher(place / "pods/pod-vm")
        await real.start()
        await phase(api, "Running")
        await api.delete(VMIS, "vm", "default")
        await phase(api, "Succeeded")
        assert real.asked == ["Sync", "Shutdown"]
        await reasons(api, "ShuttingDown", "Stopped")
        await real.end()
        await api.patch(VMIS, "vm", {"metadata": {"finalizers": []}}, "default")
        await eventually(lambda: not VmRecords(place / "records").all())
        assert vms.vms() == []


async def test_a_guest_that_has_no_time_to_shut_down_is_deleted(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm"):
        await api.patch(VMIS, "vm", {"spec": {"terminationGracePeriodSeconds": 0}}, "default")
        await phase(api, "Running")
        await api.delete(VMIS, "vm", "default")
        await reasons(api, "Deleted")


async def test_a_shorter_time_to_shut_down_is_passed_on(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        real.obeys = False
        await phase(api, "Running")
        await api.delete(VMIS, "vm", "default")
        await eventually(lambda: real.asked.count("Shutdown") == 1)
        await api.patch(VMIS, "vm", {"spec": {"terminationGracePeriodSeconds": 0}}, "default")
        await eventually(lambda: real.asked.count("Shutdown") == 2)


async def test_a_guest_that_crashes_fails_and_one_that_shuts_down_succeeds(
    api: InProcessApi, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name, reason, wanted in (("a", "Crashed", "Failed"), ("b", "Shutdown", "Succeeded")):
        await scheduled(api, place, name)
        async with handler(api, place), launcher(place / f"pods/pod-{name}") as real:
            await phase(api, "Running", name)
            real.becomes(Status.SHUTOFF, reason)
            await phase(api, wanted, name)
            about = {"kind": "Domain", "name": name, "namespace": "default"}
            told = [r.getMessage() for r in caplog.records if about.items() <= getattr(r, "about", {}).items()]
            assert told == ["Domain is in state Running reason Unknown", f"Domain is in state Shutoff reason {reason}"]


async def test_an_end_that_nobody_saw_is_found(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with launcher(place / "pods/pod-vm") as real:
        async with handler(api, place):
            await phase(api, "Running")
        real.becomes(Status.SHUTOFF, "Shutdown")
    async with handler(api, place):
        await phase(api, "Succeeded")


async def test_a_killed_launcher_is_a_failed_vm(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    real = FakeLauncher(place / "pods/pod-vm")
    await real.start()
    async with handler(api, place):
        await phase(api, "Running")
        await real.die()
        found = await phase(api, "Failed")
        assert found["status"]["reason"] == "LauncherLost"


async def test_a_vm_whose_node_lost_power_has_failed_as_soon_as_its_handler_is_back(
    api: InProcessApi, place: Path
) -> None:
    """The kubelet has taken the dead Pod's files away by then, and waits for somebody to delete the Pod."""
    await scheduled(api, place)
    async with launcher(place / "pods/pod-vm"), handler(api, place):
        await phase(api, "Running")
    shutil.rmtree(place / "pods/pod-vm")
    (place / "pods/pod-vm").mkdir()
    async with handler(api, place):
        assert (await phase(api, "Failed"))["status"]["reason"] == "LauncherLost"


async def test_what_cannot_be_started_says_why_and_starts_when_it_can(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        real.refusal = "volume 'root': the image has no file under /disk"
        found = await until(api, lambda status: condition({"status": status}, "Synchronized"))
        assert "no file under /disk" in (condition(found, "Synchronized") or {})["message"]
        assert found["status"]["phase"] == "Scheduled"
        await reasons(api, "SyncFailed")
        real.refusal = ""
        await api.patch(VMIS, "vm", {"metadata": {"annotations": {"edited": "yes"}}}, "default")
        found = await phase(api, "Running")
        assert condition(found, "Synchronized") is None


async def test_status_does_not_wait_for_a_guest_that_is_silent(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        await phase(api, "Running")
        real.silent.set()
        real.becomes(Status.RUNNING, agent=True)
        await eventually(lambda: "GetGuestInfo" in real.asked)
        real.becomes(Status.PAUSED, "User", agent=True)
        await until(api, lambda status: condition({"status": status}, "Paused"))
        real.becomes(Status.SHUTOFF, "Shutdown")
        await phase(api, "Succeeded")
        assert real.asked.count("GetGuestInfo") == 1  # it is still under way


async def test_the_guests_agent_is_asked_when_it_is_there(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        real.guest = GuestInfo(os={"id": "debian"})
        await phase(api, "Running")
        real.becomes(Status.RUNNING, agent=True)
        found = await until(api, lambda status: "guestOSInfo" in status)
        assert found["status"]["guestOSInfo"] == {"id": "debian"}
        assert condition(found, "AgentConnected")


async def test_a_vm_whose_vmi_vanished_is_ended(api: InProcessApi, place: Path) -> None:
    """Force deleted while no handler looked: only the record tells that something is still here."""
    VmRecords(place / "records").add(VmRecord(namespace="default", name="vm", uid="u0", pod="pod-vm"))
    (place / "networks").mkdir()
    (place / "networks/pod-vm.json").write_text("{}")
    async with launcher(place / "pods/pod-vm") as real:
        real.becomes(Status.RUNNING)
        async with handler(api, place):
            await eventually(lambda: real.asked == ["Kill"])
            await real.end()
            await eventually(lambda: not VmRecords(place / "records").all())
            assert not list((place / "networks").iterdir())


async def test_a_new_vmi_of_the_same_name_is_another_vm(api: InProcessApi, place: Path) -> None:
    VmRecords(place / "records").add(VmRecord(namespace="default", name="vm", uid="old", pod="pod-old"))
    (place / "pods/pod-old").mkdir(parents=True)
    await scheduled(api, place)
    async with launcher(place / "pods/pod-old") as old, launcher(place / "pods/pod-vm") as new:
        old.becomes(Status.RUNNING)
        async with handler(api, place):
            await phase(api, "Running")
            await eventually(lambda: old.asked == ["Kill"])
            assert new.asked == ["Sync"]


async def test_nothing_is_ended_on_the_word_of_a_cache_alone(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache can lose a VMI, as with a server that was restored; the VM goes on until the server says so."""
    await scheduled(api, place)
    async with handler(api, place) as vms, launcher(place / "pods/pod-vm") as real:
        await phase(api, "Running")
        with monkeypatch.context() as blind:
            looked = asyncio.Event()
            get = api.get

            async def watched(*arguments: Any, **options: Any) -> Obj:
                looked.set()
                return await get(*arguments, **options)

            blind.setattr(vms, "instance", lambda _: None)
            blind.setattr(api, "get", watched)
            vms.controller.queue.add("default/vm/pod-vm")
            await asyncio.wait_for(looked.wait(), DEADLINE)
        assert "Kill" not in real.asked


async def test_a_final_vmi_keeps_no_domain(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        await phase(api, "Running")
        await api.patch(VMIS, "vm", {"status": {"phase": "Failed"}}, "default")
        await eventually(lambda: "Kill" in real.asked)


async def test_emulation_that_is_not_allowed_is_refused(api: InProcessApi, place: Path) -> None:
    """A Pod without the device of its hypervisor."""
    await scheduled(api, place, hypervisor="mshv")
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        found = await until(api, lambda status: condition({"status": status}, "Synchronized"))
        assert "useEmulation" in (condition(found, "Synchronized") or {})["message"]
        assert real.synced == []


async def test_vmis_of_other_nodes_are_not_touched(api: InProcessApi, place: Path) -> None:
    await scheduled(api, place)
    await api.patch(VMIS, "vm", {"metadata": {"labels": {names.NODE_NAME: "n2"}}}, "default")
    await scheduled(api, place, "other")
    async with (
        handler(api, place),
        launcher(place / "pods/pod-vm") as foreign,
        launcher(place / "pods/pod-other"),
    ):
        await phase(api, "Running", "other")
        assert foreign.asked == []


async def test_a_server_that_is_away_ends_no_vm(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm") as real:
        await phase(api, "Running")
        tried = asyncio.Event()

        async def away(*_: Any, **__: Any) -> Obj:
            tried.set()
            raise ApiError("ServiceUnavailable", "away")

        with monkeypatch.context() as broken:
            broken.setattr(api, "patch", away)
            real.becomes(Status.PAUSED, "User")
            await asyncio.wait_for(tried.wait(), DEADLINE)
        await until(api, lambda status: condition({"status": status}, "Paused"))
        assert real.asked == ["Sync"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_an_interface_comes_to_a_vm_that_runs_and_goes(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the Pod has it, in a network namespace; and back to the Pod when the guest has let go, over restarts."""
    link, mac = pod_interface("more"), "02:00:00:00:00:07"

    async def wants(**interface: Any) -> None:
        spec = {
            "networks": [{"name": "more", "multus": {"networkName": "blue"}}],
            "domain": {"devices": {"interfaces": [{"name": "more", "bridge": {}, **interface}]}},
        }
        await api.patch(VMIS, "vm", {"spec": spec}, "default")

    async def told(names: list[str]) -> None:
        """Until the launcher was told last of these interfaces, which it was not to remove."""

        def last() -> bool:
            spec = orjson.loads(real.synced[-1].vmi)["spec"]
            listed = spec["domain"]["devices"].get("interfaces") or ()
            return [i["name"] for i in listed if i.get("state") != "absent"] == names

        await eventually(last)

    await scheduled(api, place)
    async with launcher(place / "pods/pod-vm", own_network=True) as real:
        assert real.process
        inside = ("nsenter", f"--net=/proc/{real.process.number}/ns/net", "ip")
        async with handler(api, place):
            await phase(api, "Running")
            await wants()
            await until(api, lambda status: not status.get("interfaces"))
            await told([])
            looked = work.arrived

            def just_missed(*about: Any) -> list[str]:
                """It comes when the handler has looked, and before it goes to sleep."""
                there = looked(*about)
                monkeypatch.setattr(work, "arrived", looked)
                add = f"link add {link} address {mac} type veth peer name other"
                subprocess.run([*inside, *add.split()], check=True)
                return there

            monkeypatch.setattr(work, "arrived", just_missed)
            await told(["more"])
            assert real.synced[-1].node.taps.keys() == {"more"}
            entry = {"name": "more", "infoSource": "multus-status", "podInterfaceName": link}
            real.becomes(Status.RUNNING, links={"02:00:00:00:00:99": "up"})
            await until(api, lambda status: entry in status.get("interfaces", ()))
            real.becomes(Status.RUNNING, links={mac: "up"})
            await until(api, lambda status: status["interfaces"][0]["infoSource"] == "domain, multus-status")
        await wants(state="absent")
        async with handler(api, place):  # another one, which knows only what is there
            await told([])
            await until(api, lambda status: status["interfaces"][0]["mac"] == mac)
            assert "bridge" in await run(*inside, "-d", "link", "show", link), "the guest has it still"
            real.becomes(Status.RUNNING, links={"02:00:00:00:00:99": "up"})
            await until(api, lambda status: not status.get("interfaces"))
            shown = await run(*inside, "-d", "link")
            assert "k6t-" not in shown and "tap" not in shown and mac in shown and f"{link}@" in shown
