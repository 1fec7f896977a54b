"""VMs are started, stopped, restarted and repaired as their run strategy says."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vm, a_vmi

from bench import simulator
from bench.simulator import NAMESPACE
from virtfleet.api import names, times
from virtfleet.controller import strategy
from virtfleet.controller import strategy as controller_strategy
from virtfleet.controller.records.instance import decode_instance
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONTROLLER_REVISIONS, EVENTS, PODS, VMIS, VMS, Obj


async def running(virt: Plane, after: str = "") -> Obj:
    """The VM's instance, once it runs; not the one with the UID `after`."""

    async def there() -> Obj | None:
        vmi = await virt.vmi()
        runs = vmi["status"]["phase"] == "Running" and not vmi["metadata"].get("deletionTimestamp")
        return vmi if runs and vmi["metadata"]["uid"] != after else None

    found: Obj = await virt.until(there)
    return found


async def ask(virt: Plane, *requests: Obj) -> None:
    await virt.api.patch(
        VMS, "vm", {"status": {"stateChangeRequests": list(requests)}}, NAMESPACE, subresource="status"
    )


def stop(vmi: Obj) -> Obj:
    return {"action": "Stop", "uid": vmi["metadata"]["uid"]}


START = {"action": "Start"}


async def end(virt: Plane, phase: str) -> Obj:
    """The guest ends by itself."""
    vmi = await virt.vmi()
    await virt.handlers.end(decode_instance(orjson.dumps(vmi)), phase)
    return vmi


async def no_requests(virt: Plane) -> None:
    async def done() -> bool:
        return not (await virt.vm())["status"].get("stateChangeRequests")

    await virt.until(done)


async def test_always_runs_and_says_so(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    vm = await virt.printable("Running")
    vmi = await virt.vmi()
    status = vm["status"]
    assert status["created"] is status["ready"] is True
    assert status["runStrategy"] == "Always"
    assert status["observedGeneration"] == status["desiredGeneration"] == vm["metadata"]["generation"]
    assert vm["metadata"]["finalizers"] == [names.VM_FINALIZER]
    assert vmi["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
    assert vmi["metadata"]["labels"]["app"] == "vm"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_always_starts_again_with_the_same_identity(virt: Plane, phase: str) -> None:
    await virt.create(VMS, a_vm())
    first = await running(virt)
    await end(virt, phase)
    second = await running(virt, after=first["metadata"]["uid"])
    assert first["spec"]["domain"]["firmware"] == second["spec"]["domain"]["firmware"]
    assert len(await virt.api.list(CONTROLLER_REVISIONS, NAMESPACE)) == 1


async def test_halting_stops_it_and_running_starts_it(virt: Plane) -> None:
    await virt.create(VMS, a_vm("Halted"))
    await virt.printable("Stopped")
    assert await virt.api.list(VMIS) == []
    await virt.api.patch(VMS, "vm", {"spec": {"runStrategy": "Always"}}, NAMESPACE)
    await virt.printable("Running")
    await virt.api.patch(VMS, "vm", {"spec": {"runStrategy": "Halted"}}, NAMESPACE)
    await virt.gone(VMIS)
    await virt.until(lambda: _says_nothing_of_an_instance(virt))
    assert await virt.pods() == []


async def _says_nothing_of_an_instance(virt: Plane) -> bool:
    status = (await virt.vm())["status"]
    return status["printableStatus"] == "Stopped" and "created" not in status


async def test_the_older_switch_works_too(virt: Plane) -> None:
    vm = a_vm()
    del vm["spec"]["runStrategy"]
    vm["spec"]["running"] = True
    await virt.create(VMS, vm)
    await virt.printable("Running")
    await virt.api.patch(VMS, "vm", {"spec": {"running": False}}, NAMESPACE)
    await virt.printable("Stopped")


async def test_manual_starts_stops_and_restarts_on_request(virt: Plane) -> None:
    await virt.create(VMS, a_vm("Manual"))
    await virt.printable("Stopped")
    await ask(virt, START)
    first = await running(virt)
    await no_requests(virt)
    await ask(virt, stop(first), START)
    second = await running(virt, after=first["metadata"]["uid"])
    await no_requests(virt)
    await ask(virt, stop(second))
    await virt.gone(VMIS)
    await no_requests(virt)
    await virt.printable("Stopped")


async def test_always_takes_a_stop_request_for_a_restart(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    first = await running(virt)
    await ask(virt, stop(first))
    await running(virt, after=first["metadata"]["uid"])
    await no_requests(virt)


async def test_a_request_to_start_a_halted_vm_switches_it_on(virt: Plane) -> None:
    await virt.create(VMS, a_vm("Halted"))
    generation = (await virt.printable("Stopped"))["metadata"]["generation"]
    await ask(virt, {"action": "Start", "data": {"paused": "true", "generation": str(generation)}})
    vmi = await running(virt)
    assert vmi["spec"]["startStrategy"] == "Paused"
    assert (await virt.vm())["spec"]["runStrategy"] == "Always"


async def test_rerun_on_failure_starts_again_only_what_failed(virt: Plane) -> None:
    await virt.create(VMS, a_vm("RerunOnFailure"))
    first = await running(virt)
    await virt.printable("Running")
    await end(virt, "Failed")
    await running(virt, after=first["metadata"]["uid"])
    await no_requests(virt)
    await end(virt, "Succeeded")
    await virt.gone(VMIS)
    await virt.printable("Stopped")
    assert await virt.api.list(VMIS) == []


async def test_once_runs_once(virt: Plane) -> None:
    await virt.create(VMS, a_vm("Once"))
    first = await running(virt)
    await end(virt, "Succeeded")
    await virt.printable("Stopped")
    assert (await virt.vmi())["metadata"]["uid"] == first["metadata"]["uid"]


@pytest.mark.usefixtures("told_at_once")
async def test_a_vm_that_fails_to_start_waits_longer_each_time(virt: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "FIRST_PAUSE", 1)
    virt.kubelets.place = lambda pod: ""
    await virt.create(VMS, a_vm())

    async def fail(count: int) -> None:
        async def scheduling() -> Any:
            pods = [p for p in await virt.pods() if not p["metadata"].get("deletionTimestamp")]
            return pods and (await virt.vmi())["status"]["phase"] == "Scheduling" and pods[0]

        pod = await virt.until(scheduling)
        await virt.api.patch(
            PODS, pod["metadata"]["name"], {"status": {"phase": "Failed"}}, NAMESPACE, subresource="status"
        )

        async def counted() -> bool:
            return bool((await virt.vm())["status"]["startFailure"]["consecutiveFailCount"] == count)

        await virt.until(counted)

    await fail(1)
    await virt.printable("CrashLoopBackOff")
    await fail(2)
    assert "lastFailedVMIUID" in (await virt.vm())["status"]["startFailure"]
    turns = iter(virt.cluster.nodes)
    virt.kubelets.place = lambda pod: next(turns)
    vm = await virt.printable("Running")
    await virt.condition("Ready", of=VMS)
    assert "startFailure" not in vm["status"]


def _without_events(writes: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    return Counter({write: count for write, count in writes.items() if write[1] != EVENTS.plural})


async def test_a_vm_whose_launcher_fails_at_once_is_not_tried_over_and_over(
    virt: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "running_status", lambda number: {"phase": "Failed", "reason": "Error"})
    await virt.create(VMS, a_vm())
    vm = await virt.printable("CrashLoopBackOff")
    assert vm["status"]["startFailure"]["consecutiveFailCount"] == 1

    async def noted() -> bool:
        return "created" not in (await virt.vm())["status"]

    await virt.until(noted)
    writes = virt.controller_api.writes
    before = _without_events(writes)
    assert before.total() < 20
    for number in range(20):  # whatever happens around it
        virt.kubelets.look_again()
        await virt.api.patch(VMS, "vm", {"metadata": {"labels": {"look": str(number)}}}, NAMESPACE)
    await virt.create(VMIS, a_vmi("other", nodeSelector={"no": "node"}))
    await virt.phase("Failed", "other")  # whoever got so far has looked at the first one too
    assert writes["create", VMIS.plural] == 1
    assert writes["patch", VMS.plural] == before["patch", VMS.plural]
    assert (await virt.vm())["status"]["printableStatus"] == "CrashLoopBackOff"


async def test_a_changed_template_asks_for_a_restart_and_gets_it(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    first = await running(virt)
    await virt.printable("Running")
    change = {"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}}
    await virt.api.patch(VMS, "vm", change, NAMESPACE)
    told = await virt.condition("RestartRequired", of=VMS)
    assert "domain.cpu" in told["message"]
    vm = await virt.vm()
    assert vm["status"]["observedGeneration"] < vm["status"]["desiredGeneration"]
    await ask(virt, stop(first), START)
    second = await running(virt, after=first["metadata"]["uid"])
    assert second["spec"]["domain"]["cpu"]["cores"] == 2

    async def settled() -> bool:
        vm = await virt.vm()
        kinds = [c["type"] for c in vm["status"]["conditions"]]
        same = vm["status"]["observedGeneration"] == vm["status"]["desiredGeneration"] == vm["metadata"]["generation"]
        return "RestartRequired" not in kinds and same

    await virt.until(settled)


@pytest.mark.parametrize("strategy", ["Always", "RerunOnFailure", "Once", "Manual"])
@pytest.mark.usefixtures("told_at_once")
async def test_a_change_to_a_vm_that_never_ran_is_tried_at_once(virt: Plane, strategy: str) -> None:
    """Too much was asked for, no node takes it, and its owner asks for less: that is all that should be needed."""
    place = virt.kubelets.place
    virt.kubelets.place = lambda pod: ""
    await virt.create(VMS, a_vm(strategy))
    if strategy == "Manual":
        await ask(virt, START)
    first = await virt.phase("Scheduling")
    virt.kubelets.place = place
    change = {"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}}
    asked = time.time()
    await virt.api.patch(VMS, "vm", change, NAMESPACE)
    second = await running(virt, after=first["metadata"]["uid"])
    assert second["spec"]["domain"]["cpu"]["cores"] == 2
    await virt.printable("Running")
    waited = times.seconds(second["metadata"]["creationTimestamp"]) - asked
    assert waited < controller_strategy.FIRST_PAUSE / 2, "a change is no failure that something is to wait for"
    assert "RestartRequired" not in [c["type"] for c in (await virt.vm())["status"]["conditions"]]


async def test_a_change_taken_back_needs_no_restart(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    await running(virt)
    for name, required in (("other", True), (None, False)):
        await virt.api.patch(VMS, "vm", {"spec": {"template": {"spec": {"hostname": name}}}}, NAMESPACE)

        async def said(required: bool = required) -> bool:
            kinds = [c["type"] for c in (await virt.vm())["status"]["conditions"]]
            return ("RestartRequired" in kinds) == required

        await virt.until(said)

    async def newest() -> bool:
        vm = await virt.vm()
        return bool(vm["status"]["observedGeneration"] == vm["metadata"]["generation"])

    await virt.until(newest)


async def test_labels_of_the_template_wait_for_the_next_start_and_ask_for_none(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    first = await running(virt)
    labels = {"spec": {"template": {"metadata": {"labels": {"late": "yes"}}}}}
    changed = await virt.api.patch(VMS, "vm", labels, NAMESPACE)

    async def seen() -> bool:
        return bool((await virt.vm())["status"].get("desiredGeneration") == changed["metadata"]["generation"])

    await virt.until(seen)
    status = (await virt.vm())["status"]
    assert status["observedGeneration"] < status["desiredGeneration"]
    assert "RestartRequired" not in [c["type"] for c in status["conditions"]]
    await ask(virt, stop(first), START)
    second = await running(virt, after=first["metadata"]["uid"])
    assert second["metadata"]["labels"]["late"] == "yes"

    async def current() -> bool:
        status = (await virt.vm())["status"]
        return bool(status["observedGeneration"] == status["desiredGeneration"])

    await virt.until(current)


async def test_a_deleted_vm_takes_its_instance_along(virt: Plane) -> None:
    virt.kubelets.lets_go = lambda pod: False
    await virt.create(VMS, a_vm())
    await running(virt)
    await virt.api.delete(VMS, "vm", NAMESPACE)
    await virt.printable("Terminating")
    virt.kubelets.lets_go = lambda pod: True
    virt.kubelets.look_again()
    await virt.gone(VMIS)
    await virt.gone(VMS)
    assert await virt.pods() == []


async def test_a_vm_deleted_without_its_instance_leaves_it_running_and_the_next_one_adopts_it(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    vmi = await running(virt)
    await virt.stop()
    await virt.api.patch(VMIS, "vm", {"metadata": {"ownerReferences": None}}, NAMESPACE)
    await virt.api.patch(VMS, "vm", {"metadata": {"finalizers": None}}, NAMESPACE)
    await virt.api.delete(VMS, "vm", NAMESPACE)
    virt.start()
    vm = await virt.create(VMS, a_vm())
    await virt.printable("Running")
    same = await virt.vmi()
    assert same["metadata"]["uid"] == vmi["metadata"]["uid"]
    assert same["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]


async def test_an_instance_of_somebody_else_is_left_alone(virt: Plane) -> None:
    owner = {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "o", "controller": True}
    foreign = a_vmi()
    foreign["metadata"]["ownerReferences"] = [owner]
    await virt.create(VMIS, foreign)
    await virt.phase("Running")
    await virt.create(VMS, a_vm())
    told = await virt.condition("Failure", of=VMS)
    assert "not this VM's" in told["message"]
    await virt.api.delete(VMIS, "vm", NAMESPACE)

    async def own() -> bool:
        return bool((await virt.vmi())["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachine")

    await virt.until(own)
    await virt.printable("Running")


async def test_an_instance_that_is_refused_is_shown_and_tried_again(virt: Plane) -> None:
    refuse, create = True, virt.controller_api.create

    async def maybe(res: Any, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        if res is VMIS and refuse:
            raise ApiError("Invalid", "spec.domain.machine.type is not allowed")
        return await create(res, obj, namespace, **how)

    virt.controller_api.create = maybe  # type: ignore[method-assign]
    await virt.create(VMS, a_vm())
    told = await virt.condition("Failure", of=VMS)
    assert (told["reason"], told["message"]) == ("FailedCreate", "spec.domain.machine.type is not allowed")
    refuse = False
    await virt.printable("Running")

    async def no_failure() -> bool:
        return "Failure" not in [c["type"] for c in (await virt.vm())["status"]["conditions"]]

    await virt.until(no_failure)


async def test_what_stops_the_instance_is_what_the_vm_shows(virt: Plane) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}
    await virt.create(VMS, a_vm(volumes=[volume]))
    await virt.printable("ErrorPvcNotFound")


async def test_fields_of_others_in_the_status_stay(virt: Plane) -> None:
    await virt.create(VMS, a_vm("Halted"))
    await virt.printable("Stopped")
    await virt.api.patch(VMS, "vm", {"status": {"snapshotInProgress": "s"}}, NAMESPACE, subresource="status")
    await virt.api.patch(VMS, "vm", {"spec": {"runStrategy": "Always"}}, NAMESPACE)
    vm = await virt.printable("Running")
    assert vm["status"]["snapshotInProgress"] == "s"


async def test_the_layout_of_pci_ports_that_an_instance_got_is_kept_with_the_vm(virt: Plane) -> None:
    layout = {names.PCI_TOPOLOGY_VERSION: "v3"}
    await virt.create(VMS, a_vm("Manual"))
    older: Obj = {"metadata": {"annotations": dict.fromkeys(layout)}}  # of a time when nobody wrote that down
    vm = await virt.api.patch(VMS, "vm", {"spec": {"template": older}}, NAMESPACE)
    assert not vm["spec"]["template"]["metadata"].get("annotations")
    await ask(virt, START)
    await running(virt)

    async def settled() -> bool:
        vm, vmi = await virt.vm(), await virt.vmi()
        kept = vm["spec"]["template"]["metadata"].get("annotations") == layout
        return bool(kept and vmi["metadata"]["annotations"][names.VM_GENERATION] == str(vm["metadata"]["generation"]))

    await virt.until(settled)
    vm = await virt.vm()
    assert vm["spec"]["template"]["metadata"]["labels"] == {"app": "vm"}
    assert not any(condition["type"] == "RestartRequired" for condition in vm["status"]["conditions"])
