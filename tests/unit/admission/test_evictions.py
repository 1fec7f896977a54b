"""What becomes of evictions of launchers' Pods, by KubeVirt's table, and of those that only pretend to be such."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission import eviction
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj

REFERENCE = {"kind": "VirtualMachineInstance", "name": "vm", "uid": "vmi-1", "controller": True}
BEGUN = 'Eviction triggered evacuation of VMI "ns/vm"'


def a_pod(uid: str = "pod-1", phase: str = "Running", **metadata: Any) -> Obj:
    meta = {"uid": uid, "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [REFERENCE], **metadata}
    return {"metadata": meta, "spec": {"nodeName": "node1"}, "status": {"phase": phase}}


def a_vmi(strategy: str = "LiveMigrate", migratable: str = "True", **status: Any) -> Obj:
    condition = {"type": "LiveMigratable", "status": migratable, "reason": "DisksNotLiveMigratable", "message": "disk"}
    said = {"phase": "Running", "nodeName": "node1", "activePods": {"pod-1": "node1"}, "conditions": [condition]}
    spec = {"evictionStrategy": strategy} if strategy else {}
    meta = {"name": "vm", "namespace": "ns", "uid": "vmi-1", "resourceVersion": "7"}
    return {"metadata": meta, "spec": spec, "status": {**said, **status}}


def cluster(strategy: str = "") -> Installation:
    return Installation({"spec": {"configuration": {"evictionStrategy": strategy} if strategy else {}}})


@pytest.mark.parametrize(
    ("strategy", "migratable", "allowed", "marked"),
    [
        ("None", "True", True, ""),
        ("", "True", True, ""),
        ("LiveMigrate", "True", False, "node1"),
        ("LiveMigrate", "False", False, ""),
        ("LiveMigrateIfPossible", "True", False, "node1"),
        ("LiveMigrateIfPossible", "False", True, ""),
        ("External", "True", False, "node1"),
        ("External", "False", False, "node1"),
    ],
)
def test_the_strategy_decides(strategy: str, migratable: str, allowed: bool, marked: str) -> None:
    verdict = eviction.judge(a_pod(), a_vmi(strategy, migratable), cluster())
    assert (verdict.allowed, verdict.leaves) == (allowed, marked)
    assert verdict.message == BEGUN if marked else verdict.message != BEGUN
    again = eviction.judge(a_pod(), a_vmi(strategy, migratable, evacuationNodeName="node1"), cluster())
    assert (again.allowed, again.leaves) == (allowed, "")
    assert again.message == f"Evacuation in progress: {BEGUN}" if marked else again.message == verdict.message


def test_a_vm_without_a_strategy_has_the_clusters() -> None:
    assert eviction.judge(a_pod(), a_vmi(""), cluster("LiveMigrate")).leaves == "node1"
    assert eviction.judge(a_pod(), a_vmi("None"), cluster("LiveMigrate")).allowed


def test_a_vm_that_cannot_move_says_why_and_what_to_do() -> None:
    said = eviction.judge(a_pod(), a_vmi(migratable="False"), cluster()).message
    assert "not live-migratable (DisksNotLiveMigratable: disk); stop the VM" in said
    starting = a_vmi(conditions=[])
    assert "its guest has not started yet" in eviction.judge(a_pod(), starting, cluster()).message


def test_neither_pod_of_a_vm_that_migrates_goes() -> None:
    moving = a_vmi(activePods={"pod-1": "node1", "pod-2": "node2"})
    verdict = eviction.judge(a_pod("pod-2"), moving, cluster())
    assert (verdict.allowed, verdict.leaves) == (False, "")
    assert "is migrating" in verdict.message


def test_a_mark_of_a_node_that_was_left_is_none() -> None:
    assert eviction.judge(a_pod(), a_vmi(evacuationNodeName="node0"), cluster()).leaves == "node1"


def test_a_pod_that_only_says_to_be_the_vmis_moves_nobody() -> None:
    assert eviction.judge(a_pod("forged"), a_vmi(), cluster()).allowed


def test_what_has_ended_goes() -> None:
    assert eviction.judge(a_pod(), a_vmi(phase="Failed"), cluster()).allowed


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(phase="Succeeded"),
        a_pod(phase="Failed"),
        a_pod(deletionTimestamp="2026-01-01T00:00:00Z"),
        a_pod(labels={}),
        a_pod(labels={"kubevirt.io": "virt-handler"}),
        a_pod(ownerReferences=[]),
        a_pod(ownerReferences=[{**REFERENCE, "kind": "ReplicaSet"}]),
        a_pod(ownerReferences=[{**REFERENCE, "controller": False}]),
    ],
)
def test_other_pods_have_no_vmi(pod: Obj) -> None:
    assert eviction.owner(pod) == ("", "")


def test_a_launcher_has_one() -> None:
    assert eviction.owner(a_pod()) == ("vm", "vmi-1")


def test_whom_the_descheduler_moves_is_in_no_hurry() -> None:
    verdict = eviction.judge(a_pod(), a_vmi(), cluster())
    by_descheduler = {"metadata": {"annotations": {"requested-by": "sigs.k8s.io/descheduler"}}}
    mark = eviction.marks(a_vmi(), verdict, by_descheduler)
    assert mark["status"] == {"evacuationNodeName": "node1"}
    assert mark["metadata"] == {"resourceVersion": "7", "annotations": {"kubevirt.io/eviction-source": "descheduler"}}
    drained = eviction.marks(a_vmi(), verdict, {"metadata": {}})
    assert drained["metadata"]["annotations"] == {"kubevirt.io/eviction-source": None}


@pytest.mark.parametrize(
    ("request_", "dry"),
    [
        ({"dryRun": True, "object": {}}, True),
        ({"dryRun": False, "object": {"deleteOptions": {"dryRun": ["All"]}}}, True),
        ({"object": {"deleteOptions": {}}}, False),
        ({"object": {}}, False),
    ],
)
def test_a_dry_run_may_be_said_in_two_ways(request_: Obj, dry: bool) -> None:
    assert eviction.dry_run(request_) is dry
