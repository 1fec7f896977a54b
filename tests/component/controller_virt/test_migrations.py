"""Migrations on a simulated cluster: every phase, every way to fail, and a controller that dies at every step.

A number in a test's name is that of the report of a KubeVirt user on what must not happen here.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vmi, plane

from bench.simulator import NAMESPACE
from virtfleet.api import conditions, names
from virtfleet.controller import disruption
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration import phases
from virtfleet.controller.records.instance import Instance
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import (
    EVENTS,
    KUBEVIRTS,
    MIGRATION_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    VMI_MIGRATIONS,
    VMIS,
    Obj,
)

PHASES = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]


def a_migration(name: str = "move", vmi: str = "vm", finalizers: tuple[str, ...] = (), **spec: Any) -> Obj:
    return {
        "apiVersion": VMI_MIGRATIONS.api_version,
        "kind": VMI_MIGRATIONS.kind,
        "metadata": {"name": name, "finalizers": list(finalizers)},
        "spec": {"vmiName": vmi, **spec},
    }


async def migration(virt: Plane, name: str = "move") -> Obj:
    return await virt.api.get(VMI_MIGRATIONS, name, NAMESPACE)


async def reached(virt: Plane, phase: str, name: str = "move") -> Obj:
    """The migration, once it is in this phase."""

    async def there() -> Obj | None:
        found = await migration(virt, name)
        return found if found.get("status", {}).get("phase") == phase else None

    answer: Obj = await virt.until(there)
    return answer


async def failed(virt: Plane, name: str = "move") -> str:
    """Why a migration failed, once it has been settled."""
    await reached(virt, "Failed", name)
    await settled(virt, name)
    reason: str = (await migration(virt, name))["status"]["migrationState"]["failureReason"]
    return reason


async def settled(virt: Plane, name: str = "move") -> None:
    async def free() -> bool:
        return names.MIGRATION_FINALIZER not in (await migration(virt, name))["metadata"].get("finalizers", [])

    await virt.until(free)


async def running(virt: Plane, name: str = "vm", **spec: Any) -> Obj:
    await virt.create(VMIS, a_vmi(name, **spec))
    return await virt.phase("Running", name)


async def moves(virt: Plane, **spec: Any) -> None:
    await virt.create(VMI_MIGRATIONS, a_migration(**spec))


def hold(virt: Plane, *steps: str) -> None:
    """Let handlers do everything but these steps of migrations."""
    virt.handlers.lets_move = lambda vmi, step: step not in steps
    virt.handlers.look_again()


class Pods:
    """Counts the Pods of each VMI as they come and go."""

    def __init__(self, virt: Plane) -> None:
        self._virt = virt
        self.there: dict[str, set[str]] = defaultdict(set)
        self.most = 0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Pods]:
        task = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        async with self._virt.api.watch(PODS, NAMESPACE) as events:
            async for event in events:
                if event.type == "BOOKMARK":
                    continue
                pod = orjson.loads(event.object)
                there = self.there[pod["metadata"]["ownerReferences"][0]["uid"]]
                name = pod["metadata"]["uid"]
                there.discard(name) if event.type == "DELETED" else there.add(name)
                self.most = max(self.most, len(there))


# --- the good way


async def test_a_vm_moves_and_its_source_pod_goes(virt: Plane) -> None:
    before = await running(virt)
    async with Pods(virt).watched() as pods:
        steps = ["prepare", "start", "arrive"]
        hold(virt, *steps)
        await moves(virt)
        for phase in ("PreparingTarget", "TargetReady", "Running"):
            await reached(virt, phase)
            hold(virt, *(steps := steps[1:]))
        done = await reached(virt, "Succeeded")
        await settled(virt)
        assert pods.most <= 2
    after = await virt.vmi()
    assert [t["phase"] for t in done["status"]["phaseTransitionTimestamps"]] == PHASES
    assert after["status"]["phase"] == "Running"
    assert after["status"]["nodeName"] != before["status"]["nodeName"]
    state = done["status"]["migrationState"]
    assert state["migrationUid"] == done["metadata"]["uid"]
    assert (state["sourceNode"], state["targetNode"]) == (before["status"]["nodeName"], after["status"]["nodeName"])
    [pod] = await virt.pods()
    assert pod["spec"]["nodeName"] == after["status"]["nodeName"]
    since = pod["metadata"]["annotations"][names.MIGRATION_TARGET_READY]
    datetime.strptime(since, "%Y-%m-%d %H:%M:%S %z UTC")  # as networks read it that let VMs keep their addresses
    assert names.MIGRATION_TARGET_NODE not in after["metadata"]["labels"]

    async def alone() -> bool:
        return list((await virt.vmi())["status"]["activePods"]) == [pod["metadata"]["uid"]]

    await virt.until(alone)
    assert {"SuccessfulCreate", "SuccessfulHandOver", "SuccessfulMigration"} <= await virt.reasons()


async def test_it_moves_again_and_only_the_last_migrations_are_kept(virt: Plane) -> None:
    await running(virt)
    async with Pods(virt).watched() as pods:
        for i in range(7):
            await moves(virt, name=f"m{i}")
            await reached(virt, "Succeeded", f"m{i}")
        assert pods.most <= 2

    async def kept() -> bool:
        return [m["metadata"]["name"] for m in await virt.api.list(VMI_MIGRATIONS, NAMESPACE)] == [
            f"m{i}" for i in range(2, 7)
        ]

    await virt.until(kept)
    assert len(await virt.pods()) == 1


async def test_the_hand_over_is_one_write_after_the_pod_runs(virt: Plane) -> None:
    await running(virt)
    virt.kubelets.lets_run = lambda pod: False
    hold(virt, "prepare")
    await moves(virt)
    await reached(virt, "Scheduling")
    vmi = await virt.vmi()
    assert "migrationState" not in vmi["status"]
    assert len(vmi["status"]["activePods"]) == 1
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()
    await reached(virt, "PreparingTarget")
    vmi = await virt.vmi()
    state = vmi["status"]["migrationState"]
    assert vmi["metadata"]["labels"][names.MIGRATION_TARGET_NODE] == state["targetNode"]
    for side in ("source", "target"):
        told = state[f"{side}State"]
        assert (told["node"], told["pod"]) == (state[f"{side}Node"], state[f"{side}Pod"])
        assert (told["migrationUID"], told["virtualMachineInstanceUID"]) == (
            state["migrationUid"],
            vmi["metadata"]["uid"],
        )
    assert set(vmi["status"]["activePods"].values()) == {state["sourceNode"], state["targetNode"]}
    hold(virt)
    await reached(virt, "Succeeded")


async def test_a_target_pod_is_made_like_the_source(virt: Plane) -> None:
    await running(virt, nodeSelector={"disk": "ssd"})
    node = (await virt.vmi())["status"]["nodeName"]
    labels = {f"{names.CPU_MODEL_MIGRATION}EPYC": "true", f"{names.CPU_FEATURE}avx": "true"}
    await virt.api.patch(NODES, node, {"metadata": {"labels": labels}})
    cpu = {"model": "EPYC", "features": ["avx", "-svm", "unlabelled"]}
    status = {"guestABI": {"machine": "pc-q35-9.2", "cpu": cpu}}
    await virt.api.patch(VMIS, "vm", {"status": status}, NAMESPACE)
    virt.kubelets.lets_run = lambda pod: False
    [source] = await virt.pods()
    await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": {"imageTag": "tomorrow"}}, NAMESPACE)
    await moves(virt, addedNodeSelector={"zone": "b", "disk": "slow"})
    made = await reached(virt, "Scheduling")
    [target] = [pod for pod in await virt.pods() if pod["metadata"]["uid"] != source["metadata"]["uid"]]
    assert target["metadata"]["labels"][names.MIGRATION_UID] == made["metadata"]["uid"]
    assert target["metadata"]["annotations"][names.MIGRATION_NAME] == "move"
    assert target["metadata"]["name"].endswith(made["metadata"]["uid"].partition("-")[0])
    assert names.NODE_NAME not in target["metadata"]["labels"]
    assert target["spec"]["containers"][0]["image"] == source["spec"]["containers"][0]["image"]
    selector = target["spec"]["nodeSelector"]
    assert selector["disk"] == "ssd"
    assert selector["zone"] == "b"
    assert labels.items() <= selector.items()
    assert f"{names.CPU_FEATURE}unlabelled" not in selector
    anti = target["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert anti[-1]["labelSelector"]["matchLabels"] == {names.CREATED_BY: (await virt.vmi())["metadata"]["uid"]}


async def test_the_policy_that_fits_is_in_force(virt: Plane) -> None:
    await running(virt, labels={"size": "big"})
    spec = {"selectors": {"virtualMachineInstanceSelector": {"size": "big"}}, "allowPostCopy": True}
    await virt.api.create(MIGRATION_POLICIES, {"metadata": {"name": "big"}, "spec": spec})
    await moves(virt)
    state = (await reached(virt, "Succeeded"))["status"]["migrationState"]
    assert state["migrationPolicyName"] == "big"
    how = state["migrationConfiguration"]
    assert (how["allowPostCopy"], how["allowWorkloadDisruption"], how["progressTimeout"]) == (True, True, 150)
    await virt.api.delete(MIGRATION_POLICIES, "big")
    await moves(virt, name="again")
    state = (await reached(virt, "Succeeded", "again"))["status"]["migrationState"]
    assert "migrationPolicyName" not in state
    assert state["migrationConfiguration"]["allowPostCopy"] is False


# --- what others have seen go wrong


async def test_13112_the_source_pod_dies_after_the_guest_has_come(virt: Plane) -> None:
    """The VM lives: who runs the guest decides."""
    await running(virt)
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    state = (await virt.vmi())["status"]["migrationState"]
    await virt.api.delete(PODS, state["sourcePod"], NAMESPACE, grace=0)
    await virt.condition("Ready", "False")
    assert (await virt.vmi())["status"]["phase"] == "Running"
    hold(virt)
    await reached(virt, "Succeeded")
    await virt.condition("Ready", "True")
    vmi = await virt.vmi()
    assert (vmi["status"]["phase"], vmi["status"]["nodeName"]) == ("Running", state["targetNode"])


@pytest.mark.parametrize("proof", ["container", "node"])
async def test_a_target_is_told_that_its_source_has_ended_where_that_is_certain(
    virt: Plane, proof: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's handler may be gone with its node. Who only cannot be reached may live."""
    monkeypatch.setattr(phases, "_SOURCE", 0.05)

    async def told() -> bool:
        return "sourceEndTimestamp" in (await virt.vmi())["status"]["migrationState"]

    await running(virt)
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    state = (await virt.vmi())["status"]["migrationState"]
    ended = {"name": "compute", "image": "i", "imageID": "", "state": {"terminated": {"exitCode": 137}}}
    if proof == "container":
        change = {"status": {"containerStatuses": [ended]}}
        await virt.api.patch(PODS, state["sourcePod"], change, NAMESPACE, subresource="status")
    else:
        taint = {"key": names.OUT_OF_SERVICE, "effect": "NoExecute"}
        await virt.api.patch(NODES, state["sourceNode"], {"spec": {"taints": [taint]}})
    assert not await told(), "the target has not got all of the guest"
    await virt.api.patch(VMIS, "vm", {"status": {"migrationState": {"targetNodeDomainDetected": True}}}, NAMESPACE)
    await virt.until(told)


async def test_a_guest_that_is_nowhere_is_lost(virt: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "SOURCE_LOST", 0.2)
    await running(virt)
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    state = (await virt.vmi())["status"]["migrationState"]
    await virt.api.delete(PODS, state["sourcePod"], NAMESPACE, grace=0)
    assert "has not come to" in await failed(virt)
    await virt.phase("Failed")


async def test_18946_a_target_on_the_sources_node_fails_at_once(virt: Plane) -> None:
    vmi = await running(virt)
    here = vmi["status"]["nodeName"]
    virt.kubelets.place = lambda pod: here
    await moves(virt)
    assert f"is on node {here}, where the VM runs already" in await failed(virt)
    [pod] = await virt.pods()
    assert names.MIGRATION_UID not in pod["metadata"]["labels"]
    assert (await virt.vmi())["status"]["activePods"] == {pod["metadata"]["uid"]: here}


async def test_2495_a_failed_migration_blocks_no_other(virt: Plane) -> None:
    await running(virt)
    hold(virt, "start")
    await moves(virt, name="first")
    await reached(virt, "TargetReady", "first")
    vmi = await virt.vmi()
    state = {"failed": True, "failureReason": "the wire is cut", "endTimestamp": "2026-01-01T00:00:00Z"}
    await virt.api.patch(VMIS, "vm", {"status": {"migrationState": state}}, NAMESPACE)
    assert await failed(virt, "first") == "the wire is cut"
    hold(virt)
    await moves(virt, name="second")
    done = await reached(virt, "Succeeded", "second")
    assert "failureReason" not in done["status"]["migrationState"]
    assert done["status"]["migrationState"]["sourceNode"] == vmi["status"]["nodeName"]


async def protected(virt: Plane, vmi: Obj) -> int:
    """How many Pods of a VMI its budget keeps from being evicted."""
    found = await virt.api.get(POD_DISRUPTION_BUDGETS, disruption.name(vmi["metadata"]["uid"]), NAMESPACE)
    number: int = found["spec"]["minAvailable"]
    return number


async def test_5425_5482_a_failed_target_goes_in_seconds_and_the_source_stays_protected(virt: Plane) -> None:
    vmi = await running(virt, evictionStrategy="LiveMigrate")
    virt.kubelets.lets_run = lambda pod: False
    async with Pods(virt).watched() as pods:
        await moves(virt)
        await reached(virt, "Scheduling")
        [target] = [pod for pod in await virt.pods() if names.MIGRATION_UID in pod["metadata"]["labels"]]
        assert await protected(virt, vmi) == 2
        status = {"phase": "Failed", "message": "no room"}
        await virt.api.patch(PODS, target["metadata"]["name"], {"status": status}, NAMESPACE, subresource="status")
        assert "no room" in await failed(virt)
        assert len(await virt.pods()) == 1
        assert await protected(virt, vmi) == 1
        virt.kubelets.lets_run = lambda pod: True
        await moves(virt, name="again")
        await reached(virt, "Succeeded", "again")
        assert pods.most == 2


async def test_2196_the_budget_protects_both_pods_until_it_is_over(virt: Plane) -> None:
    vmi = await running(virt, evictionStrategy="LiveMigrate")
    assert await protected(virt, vmi) == 1
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    assert await protected(virt, vmi) == 2
    virt.kubelets.lets_go = lambda pod: False
    hold(virt)
    await reached(virt, "Succeeded")
    assert len(await virt.pods()) == 2
    assert await protected(virt, vmi) == 2
    virt.kubelets.lets_go = lambda pod: True
    virt.kubelets.look_again()
    await settled(virt)
    assert await protected(virt, vmi) == 1


@pytest.mark.parametrize(
    ("step", "limit", "said"), [("prepare", "PREPARATION", "did not prepare"), ("start", "BEGIN", "did not begin")]
)
async def test_every_wait_ends_with_a_reason(
    virt: Plane, monkeypatch: pytest.MonkeyPatch, step: str, limit: str, said: str
) -> None:
    monkeypatch.setattr(phases, limit, 0.5)
    await running(virt)
    hold(virt, step)
    await moves(virt)
    assert said in await failed(virt)
    assert (await virt.vmi())["status"]["phase"] == "Running"
    assert len(await virt.pods()) == 1


async def test_a_source_that_says_nothing_has_its_guest_where_its_pod_is(
    virt: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "BEGIN", 0.3)
    monkeypatch.setattr(phases, "UNHEARD", 0.3)
    before = await running(virt)
    hold(virt, "start", "abort")
    await moves(virt)
    assert "did not begin to send the guest within 0 s, nor answer" in await failed(virt)
    after = await virt.vmi()
    assert (after["status"]["phase"], after["status"]["nodeName"]) == ("Running", before["status"]["nodeName"])
    assert after["status"]["migrationState"]["abortRequested"] is True
    assert len(await virt.pods()) == 1


async def test_a_migration_that_no_node_takes_says_so_while_it_waits(virt: Plane) -> None:
    await running(virt)
    virt.kubelets.lets_run = lambda pod: False
    await moves(virt)
    await reached(virt, "Scheduling")
    [target] = [pod for pod in await virt.pods() if names.MIGRATION_UID in pod["metadata"]["labels"]]
    told = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
    await virt.api.patch(PODS, target["metadata"]["name"], {"status": told}, NAMESPACE, subresource="status")

    async def said() -> bool:
        events = await virt.api.list(EVENTS, NAMESPACE)
        about = [e for e in events if e["reason"] == "migrationTargetPodUnschedulable"]
        return any(
            (e["type"], e["involvedObject"]["name"]) == ("Warning", "move") and "0/3" in e["message"] for e in about
        )

    await virt.until(said)
    await reached(virt, "Scheduling")


@pytest.mark.parametrize(("limit", "said"), [("Unschedulable", "no node took"), ("Pending", "did not run")])
async def test_a_target_pod_that_does_not_run_is_given_up(virt: Plane, limit: str, said: str) -> None:
    await running(virt)
    virt.kubelets.lets_run = lambda pod: False
    asked = a_migration()
    asked["metadata"]["annotations"] = {f"kubevirt.io/migration{limit}PodTimeoutSeconds": "1"}
    await virt.create(VMI_MIGRATIONS, asked)
    if limit == "Unschedulable":
        await reached(virt, "Scheduling")
        [target] = [pod for pod in await virt.pods() if names.MIGRATION_UID in pod["metadata"]["labels"]]
        told = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
        await virt.api.patch(PODS, target["metadata"]["name"], {"status": told}, NAMESPACE, subresource="status")
    assert said in await failed(virt)
    assert len(await virt.pods()) == 1


# --- cancelling


@pytest.mark.parametrize("step", ["place", "prepare", "start", "arrive"])
async def test_deleting_a_migration_ends_it_wherever_it_is(virt: Plane, step: str) -> None:
    before = await running(virt)
    if step == "place":
        virt.kubelets.place = lambda pod: ""
    hold(virt, step)
    await moves(virt)
    phase = {"place": "Scheduling", "prepare": "PreparingTarget", "start": "TargetReady", "arrive": "Running"}
    await reached(virt, phase[step])
    await virt.api.delete(VMI_MIGRATIONS, "move", NAMESPACE)
    await virt.gone(VMI_MIGRATIONS, "move")
    after = await virt.vmi()
    assert after["status"]["nodeName"] == before["status"]["nodeName"]
    assert names.MIGRATION_TARGET_NODE not in after["metadata"]["labels"]
    assert len(await virt.pods()) == 1
    state = after["status"].get("migrationState")
    if step == "place":
        assert state is None
    else:
        assert (state["failed"], state["abortRequested"], state["abortStatus"]) == (True, True, "Succeeded")


async def test_an_abort_that_comes_too_late_is_none(virt: Plane) -> None:
    await running(virt)
    hold(virt, "arrive", "abort")
    await moves(virt, finalizers=("example.com/mine",))  # so that how it ended can be read
    await reached(virt, "Running")
    await virt.api.delete(VMI_MIGRATIONS, "move", NAMESPACE)

    async def asked() -> bool:
        return conditions.holds((await migration(virt))["status"].get("conditions") or [], "migrationAbortRequested")

    await virt.until(asked)
    await virt.until(lambda: _arrives(virt))
    await reached(virt, "Succeeded")
    await virt.until(lambda: _alone(virt))


async def _arrives(virt: Plane) -> bool:
    vmi: Instance = virt.handlers._cache.get(f"{NAMESPACE}/vm")
    await virt.handlers.move(vmi, "arrive")
    return True


async def _alone(virt: Plane) -> bool:
    return len(await virt.pods()) == 1


async def test_a_migration_whose_object_was_torn_away_leaves_nothing(virt: Plane) -> None:
    before = await running(virt)
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    await virt.stop()
    await virt.api.patch(VMI_MIGRATIONS, "move", {"metadata": {"finalizers": None}}, NAMESPACE)
    await virt.api.delete(VMI_MIGRATIONS, "move", NAMESPACE)
    virt.start()
    await virt.until(lambda: _alone(virt))
    assert (await virt.vmi())["status"]["nodeName"] == before["status"]["nodeName"]
    hold(virt)
    await moves(virt, name="next")
    await reached(virt, "Succeeded", "next")


async def test_networks_hear_of_a_guest_whose_migration_was_torn_away_when_it_had_come(virt: Plane) -> None:
    before = await running(virt)
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    await virt.stop()
    hold(virt)

    async def there() -> bool:
        return bool((await virt.vmi())["status"]["nodeName"] != before["status"]["nodeName"])

    await virt.until(there)
    await virt.api.patch(VMI_MIGRATIONS, "move", {"metadata": {"finalizers": None}}, NAMESPACE)
    await virt.api.delete(VMI_MIGRATIONS, "move", NAMESPACE)
    virt.start()

    async def told() -> bool:
        marks = [pod["metadata"].get("annotations") or {} for pod in await virt.pods()]
        return any(names.MIGRATION_TARGET_READY in mark for mark in marks)

    await virt.until(told)


# --- a VM that cannot, or does not live to see it


async def test_a_vm_that_cannot_move_fails_with_the_reason(virt: Plane) -> None:
    await running(virt)
    fixed = [{"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "disk a"}]
    await virt.api.patch(VMIS, "vm", {"status": {"conditions": fixed}}, NAMESPACE)
    await moves(virt)
    assert "DisksNotLiveMigratable: disk a" in await failed(virt)
    assert len(await virt.pods()) == 1


async def test_a_migration_of_nothing_fails(virt: Plane) -> None:
    await moves(virt, vmi="nobody")
    assert "does not exist" in await failed(virt)


@pytest.mark.parametrize("step", ["prepare", "arrive"])
async def test_a_vm_that_is_deleted_takes_its_migration_along(virt: Plane, step: str) -> None:
    await running(virt)
    hold(virt, step)
    await moves(virt)
    await reached(virt, "PreparingTarget" if step == "prepare" else "Running")
    await virt.api.delete(VMIS, "vm", NAMESPACE)
    await failed(virt)
    await virt.gone(VMIS)
    assert await virt.pods() == []


async def test_the_finalizers_of_others_stay(virt: Plane) -> None:
    await moves(virt, vmi="nobody", finalizers=("example.com/mine",))
    await failed(virt)
    assert (await migration(virt))["metadata"]["finalizers"] == ["example.com/mine"]


# --- limits


async def test_limits_of_node_and_cluster_are_counted_before_anything_is_made(tmp_path: Path) -> None:
    async with plane(tmp_path) as virt:
        turns = iter(["node0"] * 4 + ["node1"] * 4)
        virt.kubelets.place = lambda pod: "node2" if pod.for_migration else next(turns)
        vms = [f"vm{i}" for i in range(8)]
        for name in vms:
            await running(virt, name)
        settings = {"parallelMigrationsPerCluster": 3, "parallelOutboundMigrationsPerNode": 2}
        kubevirt = {"spec": {"configuration": {"migrations": settings}}}
        await virt.api.patch(KUBEVIRTS, "kubevirt", kubevirt, NAMESPACE)
        most: list[tuple[int, int]] = []

        def step(vmi: Instance, step: str) -> bool:
            moving = [p for p in virt.kubelets._cache.list() if p.for_migration and not _arrived(virt, p)]
            nodes = [_source(virt, p) for p in moving]
            most.append((len(moving), max(map(nodes.count, nodes), default=0)))
            return True

        virt.handlers.lets_move = step
        for name in vms:
            await moves(virt, name=name, vmi=name)
        for name in vms:
            await reached(virt, "Succeeded", name)
        assert max(count for count, _ in most) <= 3
        assert max(count for _, count in most) <= 2


def _arrived(virt: Plane, pod: LauncherPod) -> bool:
    return _source(virt, pod) == "node2"


def _source(virt: Plane, pod: LauncherPod) -> str:
    assert pod.controller
    vmi = virt.handlers._cache.get(f"{NAMESPACE}/{pod.controller.name}")
    return str(vmi.status.node_name) if vmi else ""


@pytest.mark.parametrize("settings", [{"parallelMigrationsPerCluster": 1}])
async def test_a_quota_holds_one_back_and_nobody_else(virt: Plane, settings: Obj) -> None:
    await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": {"configuration": {"migrations": settings}}}, NAMESPACE)
    plain, full = virt.controller_api.create, True

    async def create(resource: Any, obj: Obj, *args: Any, **how: Any) -> Obj:
        if full and resource is PODS and obj["metadata"]["annotations"].get(names.MIGRATION_NAME) == "poor":
            raise ApiError("Forbidden", "pods is forbidden: exceeded quota: memory")
        answer: Obj = await plain(resource, obj, *args, **how)
        return answer

    virt.controller_api.create = create  # type: ignore[method-assign]
    for name in ("poor", "rich"):
        await running(virt, name)
        await moves(virt, name=name, vmi=name)
        if name == "poor":
            await virt.condition("migrationRejectedByResourceQuota", of=VMI_MIGRATIONS, name="poor")
    await reached(virt, "Succeeded", "rich")
    assert (await migration(virt, "poor"))["status"]["phase"] == "Pending"
    full = False
    done = await reached(virt, "Succeeded", "poor")
    assert not done["status"].get("conditions")


async def test_a_pod_that_is_refused_for_good_fails_the_migration(virt: Plane) -> None:
    await running(virt)
    await moves(virt, addedNodeSelector={"not a label": "x"})
    assert "the target pod was refused" in await failed(virt)


async def test_a_second_migration_of_a_vm_waits_for_the_first(virt: Plane) -> None:
    await running(virt)
    hold(virt, "start")
    await moves(virt, name="a")
    await reached(virt, "TargetReady", "a")
    await moves(virt, name="b")
    await reached(virt, "Pending", "b")
    assert len(await virt.pods()) == 2
    hold(virt)
    await reached(virt, "Succeeded", "a")
    await reached(virt, "Succeeded", "b")


# --- a controller that dies


class Dies(Exception):
    """The process ends."""


@pytest.mark.parametrize("done", [False, True], ids=["before the write", "after the write"])
async def test_a_controller_that_dies_at_every_write_still_moves_the_vm(virt: Plane, done: bool) -> None:
    """It is killed at its first write, then at its second, and so on, until one needs no more writes than it may do."""
    before = await running(virt, evictionStrategy="LiveMigrate")
    await virt.stop()
    plain = {verb: getattr(virt.controller_api, verb) for verb in ("create", "patch", "delete")}
    died = asyncio.Event()
    left = 0

    def dying(verb: str) -> Any:
        async def write(resource: Any, *args: Any, **how: Any) -> Obj:
            nonlocal left
            if resource.plural == "events":
                answer: Obj = await plain[verb](resource, *args, **how)
                return answer
            if left <= 0 and not done:
                died.set()
                await asyncio.Event().wait()
            answer = await plain[verb](resource, *args, **how)
            left -= 1
            if left <= 0 and done:
                died.set()
                await asyncio.Event().wait()
            return answer

        return write

    for verb in plain:
        setattr(virt.controller_api, verb, dying(verb))
    async with Pods(virt).watched() as pods:
        await moves(virt)
        for _ in range(40):
            left = 1
            died.clear()
            virt.start()
            over = asyncio.create_task(settled_and_succeeded(virt))
            death = asyncio.create_task(died.wait())
            await asyncio.wait([over, death], return_when=asyncio.FIRST_COMPLETED, timeout=20)
            finished = over.done()
            for task in (over, death):
                task.cancel()
            await asyncio.gather(over, death, return_exceptions=True)
            await virt.stop()
            if finished:
                break
        assert pods.most <= 2
    for verb, call in plain.items():
        setattr(virt.controller_api, verb, call)
    virt.start()
    await reached(virt, "Succeeded")
    await settled(virt)
    await virt.until(lambda: _alone(virt))
    assert (await virt.vmi())["status"]["nodeName"] != before["status"]["nodeName"]


async def settled_and_succeeded(virt: Plane) -> None:
    await reached(virt, "Succeeded")
    await settled(virt)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_kills_and_cancels_at_random_leave_every_vm_in_one_place(virt: Plane, seed: int) -> None:
    chance = random.Random(seed)
    vms = [f"vm{i}" for i in range(6)]
    for name in vms:
        await running(virt, name)
    killing = True

    async def kill() -> None:
        while killing:
            await asyncio.sleep(chance.random() * 0.05)
            await virt.stop()
            virt.start()

    async with Pods(virt).watched() as pods:
        killer = asyncio.create_task(kill())
        for turn in range(2):
            for name in vms:
                await moves(virt, name=f"{name}-{turn}", vmi=name)
            for name in vms:
                await asyncio.sleep(chance.random() * 0.05)
                if chance.random() < 0.4:
                    try:
                        await virt.api.delete(VMI_MIGRATIONS, f"{name}-{turn}", NAMESPACE)
                    except ApiError as error:
                        assert error.code == 404
        killing = False
        await killer
        await virt.until(lambda: _at_rest(virt, vms), deadline=30.0)
        assert pods.most <= 2


async def _at_rest(virt: Plane, vms: list[str]) -> bool:
    migrations = await virt.api.list(VMI_MIGRATIONS, NAMESPACE)
    assert all(m.get("status", {}).get("phase") in names.FINAL for m in migrations)
    pods = await virt.pods()
    assert len(pods) == len(vms), [p["metadata"]["name"] for p in pods]
    for name in vms:
        vmi = await virt.vmi(name)
        assert vmi["status"]["phase"] == "Running"
        assert list(vmi["status"]["activePods"].values()) == [vmi["status"]["nodeName"]]
    return True
