"""Where a VMI goes next, and in how few writes that is said."""

from __future__ import annotations

from typing import Any

import pytest

from controller.objects import NOW, claim, condition, pod, vmi
from virtfleet.api import names
from virtfleet.api.conditions import find
from virtfleet.controller import lifecycle
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.lifecycle import Situation, Trouble, change, next_phase, strays
from virtfleet.controller.records.instance import Instance

RUNS = pod("Running", node="node1", status={"qosClass": "Burstable"})
NOT_RUNNING = condition("Ready", "False", "GuestNotRunning", "Guest VM is not reported as running")


@pytest.mark.parametrize(
    ("instance", "its_pod", "phase", "reason"),
    [
        (vmi(""), None, "Pending", ""),
        (vmi("Pending"), None, "Pending", ""),
        (vmi(""), pod(), "Scheduling", ""),
        (vmi("Pending"), pod(), "Scheduling", ""),
        (vmi("Pending"), RUNS, "Scheduled", ""),
        (vmi("Pending"), pod("Running", deleting=True), "Scheduling", ""),
        (vmi("Pending", deleting=True), RUNS, "Pending", ""),
        (vmi("Pending", deleting=True), None, "Failed", ""),
        (vmi("Pending", deleting=True), pod(deleting=True), "Pending", ""),
        (vmi("Scheduling"), pod(), "Scheduling", ""),
        (vmi("Scheduling"), pod(node="node1"), "Scheduling", ""),
        (vmi("Scheduling"), RUNS, "Scheduled", ""),
        (vmi("Scheduling"), pod("Running", containers={"compute": {"waiting": {}}}), "Scheduling", ""),
        (
            vmi("Scheduling"),
            pod("Running", containers={"compute": {"running": {}}, "virtiofs-a": {"waiting": {}}}),
            "Scheduling",
            "",
        ),
        (
            vmi("Scheduling"),
            pod("Running", containers={"compute": {"terminated": {"exitCode": 1}}}),
            "Failed",
            "PodFailed",
        ),
        (vmi("Scheduling"), pod("Running", deleting=True), "Failed", "PodFailed"),
        (vmi("Scheduling"), pod("Failed", status={"reason": "Evicted"}), "Failed", "Evicted"),
        (vmi("Scheduling"), None, "Failed", "PodLost"),
        (vmi("Scheduling", deleting=True), RUNS, "Scheduling", ""),
        (vmi("Scheduling", deleting=True), None, "Failed", ""),
        (vmi("Scheduled"), RUNS, "Scheduled", ""),
        (vmi("Scheduled"), None, "Failed", "PodLost"),
        (
            vmi("Scheduled"),
            pod("Failed", node="node1", containers={"compute": {"terminated": {"exitCode": 137}}}),
            "Failed",
            "PodFailed",
        ),
        (
            vmi("Scheduled"),
            pod("Succeeded", node="node1", containers={"compute": {"terminated": {"exitCode": 0}}}),
            "Scheduled",
            "",
        ),
        (vmi("Running"), RUNS, "Running", ""),
        (vmi("Running"), pod("Failed", node="node1"), "Running", ""),  # how it ended is the handler's to say
        (vmi("Running", deleting=True), pod("Running", deleting=True), "Running", ""),
        (vmi("Running", deleting=True), None, "Failed", ""),
        (vmi("Succeeded"), None, "Succeeded", ""),
        (vmi("Failed"), RUNS, "Failed", ""),
    ],
)
def test_phases(instance: Instance, its_pod: LauncherPod | None, phase: str, reason: str) -> None:
    assert next_phase(instance, its_pod) == (phase, reason)


def test_a_new_vmi_without_a_pod_needs_no_write() -> None:
    assert change(Situation(vmi("Pending")), NOW) == {}


def test_the_first_write_says_scheduling_and_what_the_pod_was_made_for() -> None:
    made = pod(
        labels={names.HANDLER_POOL: "gpu"},
        annotations={names.LAUNCHER_HYPERVISOR: "bogus"},  # anybody who may change Pods can write these
        arguments=["--name=vmi", "--hypervisor=qemu-kvm"],
    )
    patch = change(Situation(vmi("Pending", through=("Pending",)), (made,)), NOW)
    assert patch["metadata"] == {
        "resourceVersion": "7",
        "uid": vmi().uid,
        "labels": {names.HANDLER_POOL: "gpu"},
        "annotations": {names.LAUNCHER_HYPERVISOR: "qemu-kvm"},
    }
    assert patch["status"]["phase"] == "Scheduling"
    assert [t["phase"] for t in patch["status"]["phaseTransitionTimestamps"]] == ["Pending", "Scheduling"]
    assert find(patch["status"]["conditions"], "Ready")["reason"] == "GuestNotRunning"  # type: ignore[index]
    assert "activePods" not in patch["status"]


def test_that_a_pod_got_its_node_is_not_worth_a_write() -> None:
    assert change(Situation(vmi("Scheduling", conditions=[NOT_RUNNING]), (pod(node="node1"),)), NOW) == {}


def test_a_pod_that_runs_at_once_is_one_write_with_all_that_two_would_say() -> None:
    made = pod("Running", node="node1", labels={names.HANDLER_POOL: "gpu"}, arguments=["--hypervisor=qemu-kvm"])
    patch = change(Situation(vmi("Pending", through=("Pending",)), (made,)), NOW)
    assert patch["metadata"]["labels"] == {names.HANDLER_POOL: "gpu", names.NODE_NAME: "node1"}
    assert patch["metadata"]["annotations"] == {names.LAUNCHER_HYPERVISOR: "qemu-kvm"}
    phases = [t["phase"] for t in patch["status"]["phaseTransitionTimestamps"]]
    assert phases == ["Pending", "Scheduling", "Scheduled"]
    assert patch["status"]["activePods"] == {made.uid: "node1"}


UNPLACED = {"conditions": [condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")]}


@pytest.mark.parametrize(
    ("situation", "quiet"),
    [
        (Situation(vmi("Pending"), (pod(),)), True),
        (Situation(vmi("Pending"), (pod(node="node1"),)), True),
        (Situation(vmi("Pending")), False),
        (Situation(vmi("Pending"), (RUNS,)), False),
        (Situation(vmi("Pending"), (pod("Failed"),)), False),
        (Situation(vmi("Pending"), (pod(status=UNPLACED),)), False),
        (Situation(vmi("Pending", deleting=True), (pod(),)), False),
        (Situation(vmi("Scheduling"), (pod(),)), False),
        (Situation(vmi("Pending"), (pod(),), trouble=Trouble("FailedCreate", "no")), False),
    ],
)
def test_only_that_a_pod_is_on_its_way_goes_without_saying(situation: Situation, quiet: bool) -> None:
    assert lifecycle.goes_without_saying(situation) is quiet


def test_the_hand_over_is_one_write() -> None:
    volumes = [{"name": "root", "containerDisk": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]
    waiting = vmi("Scheduling", conditions=[NOT_RUNNING], spec={"volumes": volumes})
    patch = change(Situation(waiting, (RUNS,), {"data": claim("disk", mode="Block")}), NOW)
    assert patch["metadata"]["labels"] == {names.NODE_NAME: "node1"}
    status = patch["status"]
    assert status["phase"] == "Scheduled"
    assert status["nodeName"] == "node1"
    assert status["activePods"] == {"pod-1": "node1"}
    assert status["launcherContainerImageVersion"] == "launcher:1"
    assert status["qosClass"] == "Burstable"
    root, data = status["volumeStatus"]
    assert root == {"name": "root", "target": ""}, "a disk that the status does not name is not attached"
    assert data["name"] == "data"
    assert data["persistentVolumeClaimInfo"]["volumeMode"] == "Block"


READY = condition("Ready", "True")


def test_what_the_handler_said_already_is_not_said_again() -> None:
    runs = pod("Running", node="node1", conditions=[condition("Ready", "True")])
    told = vmi("Running", pods={"pod-1": "node1"}, conditions=[READY, condition("AgentConnected", "True")])
    assert change(Situation(told, (runs,)), NOW) == {}


@pytest.mark.parametrize(
    ("its_pod", "status", "reason"),
    [
        (pod("Running", node="node1", conditions=[condition("Ready", "True")]), "True", ""),
        (
            pod("Running", node="node1", conditions=[condition("Ready", "False", "ContainersNotReady")]),
            "False",
            "ContainersNotReady",
        ),
        (pod("Running", node="node1", conditions=[condition("Ready", "False", "ReadinessGatesNotReady")]), "True", ""),
        (pod("Running", node="node1"), "False", "PodConditionMissing"),
        (pod("Running", node="node1", deleting=True), "False", "PodTerminating"),
        (pod("Failed", node="node1"), "False", "PodTerminating"),
    ],
)
def test_a_running_vmi_is_ready_as_its_pod_is(its_pod: LauncherPod, status: str, reason: str) -> None:
    running = vmi("Running", pods={"pod-1": "node1"}, conditions=[condition("Ready", "Unknown")])
    ready = find(change(Situation(running, (its_pod,)), NOW)["status"]["conditions"], "Ready")
    assert ready and (ready["status"], ready.get("reason", "")) == (status, reason)


def _told(instance: Instance, *pods: LauncherPod, trouble: Trouble | None = None) -> list[dict[str, Any]]:
    patch = change(Situation(instance, pods, trouble=trouble), NOW)
    told: list[dict[str, Any]] = patch.get("status", {}).get("conditions", instance.status.conditions)
    return told


def test_why_no_node_takes_it_is_said_as_long_as_it_is_so() -> None:
    message = "0/3 nodes are available: 3 Insufficient memory."
    stuck = pod(conditions=[condition("PodScheduled", "False", "Unschedulable", message)])
    told = _told(vmi("Scheduling", conditions=[NOT_RUNNING]), stuck)
    scheduled = find(told, "PodScheduled")
    assert scheduled and (scheduled["status"], scheduled["message"]) == ("False", message)
    assert find(_told(vmi("Scheduling", conditions=told), pod(node="node1")), "PodScheduled") is None


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_a_container_that_cannot_start_is_shown(reason: str) -> None:
    stuck = pod(node="node1", containers={"compute": {"waiting": {"reason": reason, "message": "no such image"}}})
    told = _told(vmi("Scheduling", conditions=[NOT_RUNNING]), stuck)
    said = find(told, "Synchronized")
    assert said and (said["status"], said["reason"], said["message"]) == ("False", reason, "no such image")
    assert find(_told(vmi("Scheduling", conditions=told), RUNS), "Synchronized") is None


def test_a_container_that_ended_beside_the_launcher_is_shown() -> None:
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": "virtiofsd: not found"}}
    stuck = pod("Running", node="node1", containers={"compute": {"running": {}}, "virtiofs-data": ended})
    said = find(_told(vmi("Scheduling", conditions=[NOT_RUNNING]), stuck), "Synchronized")
    assert said and (said["reason"], said["message"]) == (
        "StartError",
        "container virtiofs-data has ended: virtiofsd: not found",
    )


def test_a_file_system_of_a_running_guest_that_nobody_serves_is_shown() -> None:
    running = vmi("Running", pods={"pod-1": "node1"}, conditions=[READY])
    unready = [condition("Ready", "False", "ContainersNotReady", "containers with unready status: [virtiofs-data]")]
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    broken = pod(
        "Running", node="node1", containers={"compute": {"running": {}}, "virtiofs-data": killed}, conditions=unready
    )
    said = find(_told(running, broken), "Ready")
    assert said and (said["status"], said["reason"]) == ("False", "FilesystemContainerEnded")
    assert said["message"].startswith("container virtiofs-data has ended: exit code 137 (OOMKilled); the guest waits")
    peace = {"terminated": {"reason": "Completed", "exitCode": 0}}  # with its hypervisor, before the launcher
    ending = pod(
        "Running", node="node1", containers={"compute": {"running": {}}, "virtiofs-data": peace}, conditions=unready
    )
    assert find(_told(running, ending), "Ready")["reason"] == "ContainersNotReady"  # type: ignore[index]


def test_a_missing_claim_is_shown_like_a_pod_that_no_node_takes() -> None:
    told = _told(vmi(), trouble=Trouble(lifecycle.CLAIM_NOT_FOUND, "claim disk does not exist"))
    assert find(told, "Synchronized")["reason"] == "FailedPvcNotFound"  # type: ignore[index]
    assert find(told, "PodScheduled")["reason"] == "Unschedulable"  # type: ignore[index]
    assert find(told, "Ready")["reason"] == "PodNotExists"  # type: ignore[index]


def test_conditions_of_the_handler_are_left_alone() -> None:
    said = condition("Synchronized", "False", "SyncFailed")
    running = vmi("Running", pods={"pod-1": "node1"}, conditions=[READY, said])
    assert _told(running, pod("Running", node="node1", conditions=[condition("Ready", "True")])) == [READY, said]


# --- the end


def test_the_finalizer_stays_as_long_as_a_pod_does() -> None:
    ended = vmi("Succeeded", pods={"pod-1": "node1"}, deleting=True, conditions=[NOT_RUNNING])
    assert "finalizers" not in change(Situation(ended, (pod("Succeeded", node="node1"),)), NOW).get("metadata", {})
    patch = change(Situation(ended, ()), NOW)
    assert patch["metadata"]["finalizers"] == []
    assert patch["status"]["activePods"] == {"pod-1": None}


def test_failing_and_letting_go_is_one_write() -> None:
    patch = change(Situation(vmi("Scheduling", deleting=True), (), vm_is_gone=True), NOW)
    assert patch["status"]["phase"] == "Failed"
    assert patch["metadata"]["finalizers"] == []


def test_a_vm_sees_how_its_instance_ended_before_that_goes() -> None:
    both = [names.VMI_FINALIZER, names.VM_FINALIZER]
    ended = vmi("Failed", deleting=True, finalizers=both)
    assert change(Situation(ended), NOW)["metadata"]["finalizers"] == [names.VM_FINALIZER]
    assert change(Situation(ended, vm_is_gone=True), NOW)["metadata"]["finalizers"] == []


def test_a_vmi_without_finalizer_gets_it_with_its_first_write() -> None:
    patch = change(Situation(vmi("", finalizers=["mine"]), (pod(),)), NOW)
    assert patch["metadata"]["finalizers"] == ["mine", names.VMI_FINALIZER]


# --- pods that are not meant


def test_before_the_hand_over_every_pod_of_the_name_is_the_one() -> None:
    assert strays(vmi("Pending"), [pod()]) == strays(vmi("Scheduling"), [pod()]) == []


@pytest.mark.parametrize("phase", ["Scheduled", "Running", "Succeeded", "Failed"])
def test_a_pod_made_anew_after_the_hand_over_is_a_stray(phase: str) -> None:
    anew = pod(uid="pod-2")
    target = pod(uid="pod-3", labels={names.MIGRATION_UID: "migration"})
    handed_over = vmi(phase, pods={"pod-1": "node1"})
    assert strays(handed_over, [pod(), anew, target]) == [anew]


def test_a_pod_that_failed_before_the_hand_over_is_kept_for_its_logs() -> None:
    failed = pod("Failed", node="node1")
    patch = change(Situation(vmi("Scheduling"), (failed,)), NOW)
    assert patch["status"]["activePods"] == {"pod-1": "node1"}
    assert strays(vmi("Failed", pods={"pod-1": "node1"}), [failed]) == []


def test_while_a_vm_migrates_the_pod_on_its_node_counts() -> None:
    source, target = (
        pod("Running", node="node1"),
        pod("Running", uid="pod-2", node="node2", labels={names.MIGRATION_UID: "m"}),
    )
    assert lifecycle.current_pod(vmi("Running", pods={"pod-1": "node1"}), [source, target]) is source
    assert lifecycle.current_pod(vmi("Running", pods={"pod-2": "node2"}), [source, target]) is target
    assert lifecycle.current_pod(vmi("Scheduling"), [target]) is None


def test_a_pod_whose_node_is_not_known_here_yet_is_not_lost() -> None:
    late = pod()
    assert lifecycle.current_pod(vmi("Running", pods={"pod-1": "node1"}), [late]) is late


def test_a_node_that_cannot_mount_images_is_named_with_what_to_do_in_words_that_stay_the_same() -> None:
    said = (
        'failed to create containerd container: failed to apply OCI options: failed to mkdir "": mkdir : no such file'
    )
    attempts = [f"{said} (attempt {number})" for number in range(2)]
    waiting = [{"waiting": {"reason": "CreateContainerError", "message": attempt}} for attempt in attempts]
    first, second = (lifecycle.container_trouble(pod(node="old", containers={"compute": state})) for state in waiting)
    assert first and first == second
    assert first.reason == "ImageVolumesNotSupported"
    assert "node old" in first.message and "containerd from 2.1 on" in first.message and "claim" in first.message


PAUSED = condition("Paused", "True")


@pytest.mark.parametrize(
    ("instance", "says", "wanted"),
    [
        (vmi("Pending"), "", ""),
        (vmi("Scheduled"), "", ""),
        (vmi("Running"), "", "True"),
        (vmi("Running"), "True", ""),
        (vmi("Running", conditions=[PAUSED]), "True", "False"),
        (vmi("Running"), "False", "True"),
        (vmi("Running", spec={"startStrategy": "Paused"}), "False", "True"),
    ],
)
def test_the_readiness_gate_is_open_while_the_guest_runs_and_goes_on(
    instance: Instance, says: str, wanted: str
) -> None:
    words = {
        "True": ("NotPaused", "the virtual machine is not paused"),
        "False": ("Paused", "the virtual machine is paused"),
    }
    known = [condition(names.UNPAUSED, says, *words[says])] if says else []
    gated = pod("Running", node="node1", conditions=known, gates=[names.UNPAUSED])
    said = lifecycle.gate(Situation(instance, (gated,)), NOW)
    assert (said["status"] if said else "") == wanted


def test_a_pod_without_a_readiness_gate_is_left_alone() -> None:
    assert lifecycle.gate(Situation(vmi("Running"), (RUNS,)), NOW) is None
