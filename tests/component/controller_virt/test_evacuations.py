"""Nodes that are drained, on a simulated cluster: VMs leave within both limits, and stay when that is over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from virt_plane import Plane, a_vm, a_vmi, plane

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.controller import disruption
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration import retries
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import (
    EVENTS,
    KUBEVIRTS,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    VMI_MIGRATIONS,
    VMIS,
    VMS,
    Obj,
)

HERE, TAINT = "node0", {"key": "kubevirt.io/drain", "effect": "NoSchedule"}


async def running(virt: Plane, count: int = 1, node: str = HERE, strategy: str = "LiveMigrate", **spec: Any) -> None:
    """VMs `vm0`, `vm1`... on a node; what comes later goes to the others."""
    virt.kubelets.place = lambda pod: node
    for name in (f"vm{i}" for i in range(count)):
        await virt.create(VMIS, a_vmi(name, evictionStrategy=strategy, **spec))
    for name in (f"vm{i}" for i in range(count)):
        await virt.phase("Running", name)
    elsewhere(virt, node)


def elsewhere(virt: Plane, node: str = HERE) -> None:
    def place(pod: LauncherPod) -> str:
        return next(n for n in virt.cluster.nodes if n != node)

    virt.kubelets.place = place
    virt.kubelets.look_again()


def hold(virt: Plane, *steps: str) -> None:
    virt.handlers.lets_move = lambda vmi, step: step not in steps
    virt.handlers.look_again()


async def evict(virt: Plane, name: str = "vm0", **metadata: Any) -> None:
    """What virt-api writes where a launcher's Pod is evicted."""
    vmi = await virt.vmi(name)
    patch = {"metadata": metadata, "status": {"evacuationNodeName": vmi["status"]["nodeName"]}}
    await virt.api.patch(VMIS, name, patch, NAMESPACE)


async def cordon(virt: Plane, cordoned: bool = True, node: str = HERE) -> None:
    await virt.api.patch(NODES, node, {"spec": {"unschedulable": cordoned or None}})


async def migrations(virt: Plane) -> list[Obj]:
    return await virt.api.list(VMI_MIGRATIONS, NAMESPACE)


async def in_phase(virt: Plane, phase: str, count: int = 1) -> list[Obj]:
    """The migrations, once so many are in this phase."""

    async def there() -> list[Obj] | None:
        found = [m for m in await migrations(virt) if m.get("status", {}).get("phase") == phase]
        return found if len(found) == count else None

    found: list[Obj] = await virt.until(there)
    return found


async def left(virt: Plane, count: int = 1, node: str = HERE) -> None:
    async def gone() -> bool:
        vmis = [await virt.vmi(f"vm{i}") for i in range(count)]
        return all(v["status"]["nodeName"] != node and v["status"]["phase"] == "Running" for v in vmis)

    await virt.until(gone)


async def told(virt: Plane, reason: str, name: str = "vm0", kind: str = VMIS.kind) -> list[str]:
    """What events of a VM say, once there is one."""

    async def said() -> list[str]:
        events = await virt.api.list(EVENTS, NAMESPACE)
        about = [e for e in events if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, name)]
        return [e["message"] for e in about if e["reason"] == reason]

    found: list[str] = await virt.until(said)
    return found


async def asked_to_leave(virt: Plane, name: str, condition: str, mark: str) -> bool:
    """Whether the condition of a VMI, and what the descheduler reads on its Pod, are these."""
    vmi = await virt.vmi(name)
    said = [c["status"] for c in vmi["status"]["conditions"] if c["type"] == "EvictionRequested"]
    [pod] = [p for p in await virt.pods() if name in p["metadata"]["name"] and p["spec"]["nodeName"] == HERE]
    there = pod["metadata"]["annotations"].get("descheduler.alpha.kubernetes.io/eviction-in-progress", "")
    return said == [condition][: bool(condition)] and there == mark


# --- the good way


async def test_a_vm_whose_pod_is_evicted_moves_with_its_launcher_image(virt: Plane) -> None:
    await running(virt)
    before = await virt.vmi("vm0")
    change = {"spec": {"imageTag": "newer"}}
    await virt.api.patch(KUBEVIRTS, "kubevirt", change, NAMESPACE)
    await evict(virt)
    await left(virt)
    [migration] = await in_phase(virt, "Succeeded")
    meta = migration["metadata"]
    assert meta["name"].startswith("kubevirt-evacuation-")
    assert meta["annotations"][names.EVACUATION] == HERE
    assert migration["spec"]["priority"] == "system-critical"
    after = await virt.vmi("vm0")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "evacuationNodeName" not in after["status"]
    assert after["status"]["launcherContainerImageVersion"] == before["status"]["launcherContainerImageVersion"]


async def test_what_the_descheduler_moves_comes_after_others(virt: Plane) -> None:
    await running(virt)
    await evict(virt, annotations={names.EVICTION_SOURCE: names.DESCHEDULER})
    [migration] = await in_phase(virt, "Succeeded")
    assert migration["spec"]["priority"] == "system-maintenance"


async def test_a_taint_empties_the_node_of_what_may_move(virt: Plane) -> None:
    await running(virt, 2)
    virt.kubelets.place = lambda pod: HERE
    await virt.create(VMIS, a_vmi("stays", evictionStrategy="None"))
    await virt.phase("Running", "stays")
    elsewhere(virt)
    await virt.api.patch(NODES, HERE, {"spec": {"taints": [TAINT]}})
    await left(virt, 2)
    await in_phase(virt, "Succeeded", 2)
    assert (await virt.vmi("stays"))["status"]["nodeName"] == HERE


# --- limits


def configured(**migrations: Any) -> Obj:
    spec = {"configuration": {"migrations": migrations}}
    return {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": spec}


@pytest.mark.slow
async def test_8701_no_migration_is_made_that_would_wait_for_its_node(tmp_path: Path) -> None:
    """A draining node leaves the rest of the cluster's limit to others, and each VM says once that it waits."""
    settings = configured(parallelMigrationsPerCluster=3, parallelOutboundMigrationsPerNode=2)
    async with plane(tmp_path, kubevirt=settings) as virt:
        await running(virt, 5)
        virt.kubelets.place = lambda pod: "node1"
        for name in ("a", "b"):
            await virt.create(VMIS, a_vmi(name, evictionStrategy="LiveMigrate"))
            await virt.phase("Running", name)
        virt.kubelets.place = lambda pod: "node2"
        hold(virt, "arrive")
        for i in range(5):
            await evict(virt, f"vm{i}")
        await in_phase(virt, "Running", 2)
        for name in ("a", "b"):
            await evict(virt, name)
        made = await in_phase(virt, "Running", 3)
        sources = Counter(m["metadata"]["annotations"][names.EVACUATION] for m in made)
        assert sources == {HERE: 2, "node1": 1}
        assert len(await migrations(virt)) == 3
        for name in {f"vm{i}" for i in range(5)} - {m["spec"]["vmiName"] for m in made}:
            [message] = await told(virt, "EvacuationWaiting", name)
            assert "2 VMs leave the node at one time (parallelOutboundMigrationsPerNode)" in message
        most = 0

        async def all_gone() -> bool:
            nonlocal most
            phases = [m.get("status", {}).get("phase") for m in await migrations(virt)]
            most = max(most, len(phases) - phases.count("Succeeded"))
            vmis = await virt.api.list(VMIS, NAMESPACE)
            return {v["status"]["nodeName"] for v in vmis} == {"node2"}

        hold(virt)
        await virt.until(all_gone)
        assert most <= 3
        assert len(await migrations(virt)) == 7


# --- the end of a drain


@pytest.mark.parametrize("controller_dies", [False, True])
async def test_9585_uncordoning_ends_it(virt: Plane, controller_dies: bool) -> None:
    """VMs that are on their way go on, the others stay, and nothing comes back."""
    await running(virt, 4)
    hold(virt, "prepare")
    await cordon(virt)
    for i in range(4):
        await evict(virt, f"vm{i}")
    first, second = await in_phase(virt, "PreparingTarget", 2)

    async def noted() -> bool:
        return names.DRAINED in (await virt.api.get(NODES, HERE))["metadata"].get("annotations", {})

    await virt.until(noted)
    if controller_dies:
        await virt.stop()
    virt.handlers.lets_move = lambda vmi, step: step != "arrive" if vmi.name == first["spec"]["vmiName"] else False
    virt.handlers.look_again()

    async def sent() -> bool:
        state = (await virt.vmi(first["spec"]["vmiName"]))["status"]["migrationState"]
        return "startTimestamp" in state

    await virt.until(sent)
    await cordon(virt, False)
    if controller_dies:
        virt.start()

    async def settled() -> bool:
        marks = [(await virt.vmi(f"vm{i}"))["status"].get("evacuationNodeName") for i in range(4)]
        return not any(marks) and not await noted()

    await virt.until(settled)
    await virt.gone(VMI_MIGRATIONS, second["metadata"]["name"])
    hold(virt)
    await in_phase(virt, "Succeeded")
    assert (await virt.vmi(first["spec"]["vmiName"]))["status"]["nodeName"] != HERE
    for name in {f"vm{i}" for i in range(4)} - {first["spec"]["vmiName"]}:
        assert (await virt.vmi(name))["status"]["nodeName"] == HERE
        assert await told(virt, "EvacuationCancelled", name)
    assert len(await migrations(virt)) == 1, "none came back"


async def test_9585_taking_it_back_for_one_vm_ends_it_for_that_one(virt: Plane) -> None:
    await running(virt, 2)
    hold(virt, "prepare")
    for name in ("vm0", "vm1"):
        await evict(virt, name)
    await in_phase(virt, "PreparingTarget", 2)
    await virt.until(lambda: asked_to_leave(virt, "vm0", "True", "kubevirt"))
    await virt.api.patch(VMIS, "vm0", {"status": {"evacuationNodeName": None}}, NAMESPACE)
    await virt.until(lambda: asked_to_leave(virt, "vm0", "", ""))

    async def withdrawn() -> bool:
        return [m["spec"]["vmiName"] for m in await migrations(virt)] == ["vm1"]

    await virt.until(withdrawn)
    hold(virt)
    [done] = await in_phase(virt, "Succeeded")
    assert done["spec"]["vmiName"] == "vm1"
    assert (await virt.vmi("vm0"))["status"]["nodeName"] == HERE
    assert len(await migrations(virt)) == 1


async def test_5177_a_deleted_migration_does_not_come_back_at_once(virt: Plane) -> None:
    await running(virt)
    hold(virt, "prepare")
    await evict(virt)
    [first] = await in_phase(virt, "PreparingTarget")
    await virt.api.delete(VMI_MIGRATIONS, first["metadata"]["name"], NAMESPACE)
    await virt.gone(VMI_MIGRATIONS, first["metadata"]["name"])
    [message] = await told(virt, "EvacuationWaiting")
    assert "the migration was cancelled; tried again after pauses" in message
    assert await migrations(virt) == []
    await virt.api.patch(VMIS, "vm0", {"status": {"evacuationNodeName": None}}, NAMESPACE)  # evacuate-cancel
    hold(virt)
    assert await migrations(virt) == []
    assert (await virt.vmi("vm0"))["status"]["nodeName"] == HERE


async def test_14449_a_drain_that_meets_a_migration_waits_for_it_and_makes_no_other(virt: Plane) -> None:
    await running(virt)
    hold(virt, "arrive")
    user = {"metadata": {"name": "by-hand"}, "spec": {"vmiName": "vm0"}}
    await virt.create(VMI_MIGRATIONS, {"apiVersion": VMI_MIGRATIONS.api_version, "kind": VMI_MIGRATIONS.kind, **user})
    await in_phase(virt, "Running")
    await cordon(virt)
    await evict(virt)
    hold(virt)
    await left(virt)
    [done] = await in_phase(virt, "Succeeded")
    assert done["metadata"]["name"] == "by-hand"
    assert len(await migrations(virt)) == 1
    assert "evacuationNodeName" not in (await virt.vmi("vm0"))["status"]


# --- what does not go


async def test_a_vm_that_fails_to_move_is_tried_again_with_pauses_and_one_event(
    virt: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1.0)
    vm = a_vm(evictionStrategy="LiveMigrate")
    virt.kubelets.place = lambda pod: HERE
    await virt.create(VMS, vm)
    await virt.phase("Running")
    elsewhere(virt)
    virt.kubelets.lets_run = lambda pod: False

    async def refuse_targets() -> bool:
        for pod in await virt.pods():
            if names.MIGRATION_UID in pod["metadata"]["labels"] and pod["status"]["phase"] == "Pending":
                status = {"phase": "Failed", "message": f"no room for {pod['metadata']['name']}"}
                await virt.api.patch(PODS, pod["metadata"]["name"], {"status": status}, NAMESPACE, subresource="status")
        failed = [m for m in await migrations(virt) if m.get("status", {}).get("phase") == "Failed"]
        return len(failed) >= 2

    await evict(virt, "vm")
    await virt.until(refuse_targets)
    ended = [m["status"]["phaseTransitionTimestamps"][-1]["phaseTransitionTimestamp"] for m in await migrations(virt)]
    assert len(set(ended)) == len(ended)
    for kind in (VMIS.kind, VMS.kind):
        [message] = await told(virt, "EvacuationWaiting", "vm", kind)
        assert "no room for" in message and "tried again after pauses" in message
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()

    async def moved() -> bool:
        return bool((await virt.vmi())["status"]["nodeName"] != HERE)

    await virt.until(moved)


async def test_who_cannot_or_need_not_move_says_so(virt: Plane) -> None:
    await running(virt, 1, strategy="External")
    virt.kubelets.place = lambda pod: HERE
    await virt.create(VMIS, a_vmi("fixed", evictionStrategy="LiveMigrate"))
    await virt.phase("Running", "fixed")
    condition = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "a disk"}
    await virt.api.patch(VMIS, "fixed", {"status": {"conditions": [condition]}}, NAMESPACE)
    for name in ("vm0", "fixed"):
        await evict(virt, name)
    [message] = await told(virt, "EvacuationWaiting", "vm0")
    assert "whoever manages it has to move or stop it" in message
    [message] = await told(virt, "EvacuationWaiting", "fixed")
    assert "DisksNotLiveMigratable: a disk" in message
    assert await migrations(virt) == []


async def test_a_migration_that_is_refused_holds_up_nobody_else(virt: Plane) -> None:
    await running(virt, 2)
    create = virt.controller_api.create

    async def refuse(res: Any, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        if res is VMI_MIGRATIONS and obj["spec"]["vmiName"] == "vm0":
            raise ApiError("Invalid", "not this one", code=422)
        return await create(res, obj, namespace, **how)

    virt.controller_api.create = refuse  # type: ignore[method-assign]
    for name in ("vm0", "vm1"):
        await evict(virt, name)
    [done] = await in_phase(virt, "Succeeded")
    assert done["spec"]["vmiName"] == "vm1"
    [message] = await told(virt, "EvacuationWaiting", "vm0")
    assert "not this one" in message


# --- budgets


async def test_a_vm_that_moves_if_it_can_has_a_budget_as_long_as_it_can(virt: Plane) -> None:
    await running(virt, strategy="LiveMigrateIfPossible")
    budget = disruption.name((await virt.vmi("vm0"))["metadata"]["uid"])

    async def protected() -> Obj:
        return await virt.api.get(POD_DISRUPTION_BUDGETS, budget, NAMESPACE)

    await virt.until(protected)
    condition = {"type": "LiveMigratable", "status": "False", "reason": "x", "message": "y"}
    await virt.api.patch(VMIS, "vm0", {"status": {"conditions": [condition]}}, NAMESPACE)
    await virt.gone(POD_DISRUPTION_BUDGETS, budget)


async def test_a_budget_that_somebody_deletes_comes_back(virt: Plane) -> None:
    await running(virt)
    budget = disruption.name((await virt.vmi("vm0"))["metadata"]["uid"])
    first = await virt.api.get(POD_DISRUPTION_BUDGETS, budget, NAMESPACE)
    await virt.api.delete(POD_DISRUPTION_BUDGETS, budget, NAMESPACE)

    async def another() -> bool:
        found = await virt.api.get(POD_DISRUPTION_BUDGETS, budget, NAMESPACE)
        return bool(found["metadata"]["uid"] != first["metadata"]["uid"])

    await virt.until(another)


async def test_a_vm_has_one_budget_whoever_made_others_for_it(virt: Plane) -> None:
    await running(virt)
    vmi = await virt.vmi("vm0")
    ours = await virt.api.get(POD_DISRUPTION_BUDGETS, disruption.name(vmi["metadata"]["uid"]), NAMESPACE)
    owned = ours["metadata"]["ownerReferences"]
    for name, of in (("of-an-old-controller", owned), ("of-somebody", [])):
        about = {"name": name, "ownerReferences": of}
        await virt.create(POD_DISRUPTION_BUDGETS, {**ours, "metadata": about})
    await virt.gone(POD_DISRUPTION_BUDGETS, "of-an-old-controller")
    for name in (ours["metadata"]["name"], "of-somebody"):
        assert await virt.api.get(POD_DISRUPTION_BUDGETS, name, NAMESPACE)


# --- any process may die


@pytest.mark.slow
async def test_a_controller_that_dies_at_every_write_moves_each_vm_once(virt: Plane) -> None:
    await running(virt, 4)
    await cordon(virt)
    for i in range(4):
        await evict(virt, f"vm{i}")
    dead = 0
    while True:
        vmis = [await virt.vmi(f"vm{i}") for i in range(4)]
        if all(v["status"]["nodeName"] != HERE for v in vmis):
            break
        before = virt.controller_api.writes.total()

        async def wrote(before: int = before) -> bool:
            vmis = [await virt.vmi(f"vm{i}") for i in range(4)]
            return virt.controller_api.writes.total() > before + 2 or all(v["status"]["nodeName"] != HERE for v in vmis)

        await virt.until(wrote)
        await virt.stop()
        dead += 1
        virt.start()
    assert dead > 3
    made = await in_phase(virt, "Succeeded", 4)
    assert {m["spec"]["vmiName"] for m in made} == {f"vm{i}" for i in range(4)}
    assert len(await migrations(virt)) == 4
