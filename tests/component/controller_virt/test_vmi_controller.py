"""The way of a VMI to its node and back, on a real API server with simulated kubelets and handlers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vm, a_vmi, plane

from bench.controller import served
from bench.simulator import NAMESPACE, running_status, simulation
from virtfleet.api import conditions, names
from virtfleet.api.quantity import Quantity
from virtfleet.controller import lifecycle
from virtfleet.controller.assembly import VirtController
from virtfleet.controller.pods import LauncherPods
from virtfleet.controller.records.instance import decode_instance
from virtfleet.kube.api import Patch
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import (
    EVENTS,
    KUBEVIRTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    VMIS,
    VMS,
    Obj,
    Resource,
)


async def test_two_writes_of_the_vmi_and_one_of_the_pod_until_it_runs(virt: Plane) -> None:
    may_run = asyncio.Event()
    virt.handlers.lets_run = lambda vmi: may_run.is_set()
    await virt.create(VMIS, a_vmi())
    await virt.phase("Scheduled")
    await virt.until(lambda: _has_reason(virt, "SuccessfulCreate"))
    writes, handlers = virt.controller_api.writes, virt.cluster.handler_api.writes
    assert writes == {
        ("create", "pods"): 1,
        ("create", "events"): 1,
        ("patch", "virtualmachineinstances"): 1,
    }
    may_run.set()
    virt.handlers.look_again()
    vmi = await virt.phase("Running")
    await virt.until(lambda: _is_open(virt))
    assert writes["patch", "virtualmachineinstances"] == handlers["patch", "virtualmachineinstances"] == 1
    phases = [t["phase"] for t in vmi["status"]["phaseTransitionTimestamps"]]
    assert phases == ["Pending", "Scheduling", "Scheduled", "Running"]


async def test_a_pod_that_takes_its_time_is_told(virt: Plane) -> None:
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(VMIS, a_vmi())
    vmi = await virt.phase("Scheduling")
    assert [c["reason"] for c in vmi["status"]["conditions"] if c["type"] == "Ready"] == ["GuestNotRunning"]
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()
    vmi = await virt.phase("Running")
    assert virt.controller_api.writes["patch", "virtualmachineinstances"] == 2
    phases = [t["phase"] for t in vmi["status"]["phaseTransitionTimestamps"]]
    assert phases == ["Pending", "Scheduling", "Scheduled", "Running"]


async def _is_open(virt: Plane) -> bool:
    """Whether the readiness gate of its Pod is."""
    [pod] = await virt.pods()
    return conditions.holds(pod["status"]["conditions"], names.UNPAUSED)


async def _has_reason(virt: Plane, reason: str) -> bool:
    return reason in await virt.reasons()


async def test_the_hand_over_tells_the_handler_where_and_what(virt: Plane) -> None:
    virt.handlers.lets_run = lambda vmi: False
    await virt.create(VMIS, a_vmi())
    vmi = await virt.phase("Scheduled")
    [pod] = await virt.pods()
    node = pod["spec"]["nodeName"]
    assert vmi["metadata"]["labels"][names.NODE_NAME] == vmi["status"]["nodeName"] == node
    assert vmi["status"]["activePods"] == {pod["metadata"]["uid"]: node}
    assert vmi["status"]["launcherContainerImageVersion"] == pod["spec"]["containers"][0]["image"]
    assert vmi["metadata"]["annotations"][names.LAUNCHER_HYPERVISOR] == "qemu-kvm"
    assert pod["metadata"]["labels"][names.CREATED_BY] == vmi["metadata"]["uid"]


@pytest.mark.parametrize(
    ("strategy", "holds"),
    [("LiveMigrate", True), ("External", True), ("None", False)],
)
async def test_a_drain_does_not_end_a_guest_that_is_to_be_moved(virt: Plane, strategy: str, holds: bool) -> None:
    await virt.create(VMIS, a_vmi(evictionStrategy=strategy))
    vmi = await virt.phase("Running")
    [pod] = await virt.pods()
    budgets = await virt.api.list(POD_DISRUPTION_BUDGETS, NAMESPACE)
    assert [b["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items() for b in budgets] == (
        [True] if holds else []
    )
    assert [o["uid"] for b in budgets for o in b["metadata"]["ownerReferences"]] == [vmi["metadata"]["uid"]] * holds


async def test_nothing_is_written_about_a_vmi_at_rest(virt: Plane) -> None:
    await virt.create(VMIS, a_vmi())
    before = await virt.phase("Running")
    for _ in range(2):
        await virt.stop()
        virt.start()
        await virt.create(VMIS, a_vmi("other"))
        await virt.phase("Running", "other")  # whoever got so far has looked at the first one too
        await virt.api.delete(VMIS, "other", NAMESPACE)
        await virt.gone(VMIS, "other")
    assert (await virt.vmi())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.usefixtures("told_at_once")
async def test_why_no_node_takes_it_is_shown_until_one_does(virt: Plane) -> None:
    somewhere = virt.kubelets.place
    virt.kubelets.place = lambda pod: ""
    await virt.create(VMIS, a_vmi())
    await virt.phase("Scheduling")
    [pod] = await virt.pods()
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
    await _report(virt, pod, {"conditions": [why]})
    told = await virt.condition("PodScheduled", "False")
    assert (told["reason"], told["message"]) == ("Unschedulable", "Insufficient memory")
    await virt.until(lambda: _has_reason(virt, "FailedScheduling"))
    events = await virt.api.list(EVENTS, NAMESPACE)
    assert {e["type"] for e in events if e["reason"] == "FailedScheduling"} == {"Normal"}, "it may yet be taken"
    virt.kubelets.place = somewhere
    virt.kubelets.look_again()
    vmi = await virt.phase("Running")
    assert [c["type"] for c in vmi["status"]["conditions"]] == ["Ready", "LiveMigratable"]


@pytest.mark.usefixtures("told_at_once")
async def test_a_pod_that_no_scheduler_looks_at_is_shown_until_one_does(
    virt: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "OVERLOOKED_AFTER", 1.0)
    somewhere = virt.kubelets.place
    virt.kubelets.place = lambda pod: ""
    await virt.create(VMS, a_vm(schedulerName="nobody"))
    told = await virt.condition("PodScheduled", "False")
    assert told["reason"] == "NoScheduler"
    assert "none named 'nobody'" in told["message"] and "Set spec.schedulerName" in told["message"]
    await virt.until(lambda: _has_reason(virt, "FailedScheduling"))
    await virt.printable("ErrorUnschedulable")
    virt.kubelets.place = somewhere
    virt.kubelets.look_again()
    await virt.printable("Running")
    assert [c["type"] for c in (await virt.vmi())["status"]["conditions"]] == ["Ready", "LiveMigratable"]


@pytest.mark.usefixtures("told_at_once")
async def test_an_image_that_cannot_be_pulled_is_shown_until_it_can(virt: Plane) -> None:
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(VMIS, a_vmi())
    await virt.phase("Scheduling")
    [pod] = await virt.pods()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}
    container = {"name": "compute", "ready": False, "restartCount": 0, "image": "x", "imageID": "", "state": waiting}
    await _report(virt, pod, {"containerStatuses": [container]})
    told = await virt.condition("Synchronized", "False")
    assert (told["reason"], told["message"]) == ("ImagePullBackOff", "Back-off pulling image x")
    await virt.until(lambda: _has_reason(virt, "ImagePullBackOff"))
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()
    await virt.phase("Running")


async def _report(virt: Plane, pod: Obj, status: Obj) -> None:
    name = pod["metadata"]["name"]
    await virt.api.patch(PODS, name, {"status": status}, NAMESPACE, how=Patch.STRATEGIC, subresource="status")


async def test_a_vmi_waits_for_its_claim_and_says_so(virt: Plane) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}
    await virt.create(VMIS, a_vmi(volumes=[volume]))
    told = await virt.condition("Synchronized", "False")
    assert told["reason"] == "FailedPvcNotFound"
    assert told["message"] == f"PVC {NAMESPACE}/disk does not exist, waiting for it to appear"
    assert (await virt.condition("PodScheduled", "False"))["message"] == told["message"]
    assert await virt.pods() == []
    spec = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}}
    await virt.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "disk"}, "spec": spec})
    vmi = await virt.phase("Running")
    [status] = vmi["status"]["volumeStatus"]
    assert status["persistentVolumeClaimInfo"]["volumeMode"] == "Block"
    [pod] = await virt.pods()
    assert [d["name"] for d in pod["spec"]["containers"][0]["volumeDevices"]] == ["data"]


class Refusals:
    """The API server refuses Pods for as long as there is a reason."""

    def __init__(self, virt: Plane) -> None:
        self.why = ""
        self._create = virt.controller_api.create
        virt.controller_api.create = self.create  # type: ignore[method-assign]

    async def create(self, res: Resource, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        if res is PODS and self.why:
            raise ApiError("Forbidden", self.why)
        return await self._create(res, obj, namespace, **how)


async def test_a_pod_that_is_refused_is_shown_and_tried_again(virt: Plane) -> None:
    refusals = Refusals(virt)
    refusals.why = "exceeded quota"
    await virt.create(VMIS, a_vmi())
    told = await virt.condition("Synchronized", "False")
    assert told["reason"] == "FailedCreate"
    assert "exceeded quota" in told["message"]
    await virt.until(lambda: _has_reason(virt, "FailedCreate"))
    assert (await virt.vmi())["status"]["phase"] == "Pending"
    refusals.why = ""
    vmi = await virt.phase("Running")
    assert [c["type"] for c in vmi["status"]["conditions"]] == ["Ready", "LiveMigratable"]


@pytest.mark.parametrize(
    ("label", "times"), [("", 2.0), ("1.5", 1.5), ("1e999999999", 2.0), ("0.1", 2.0), ("nan", 2.0)]
)
async def test_a_quota_on_limits_gets_them(virt: Plane, label: str, times: float) -> None:
    create = virt.controller_api.create

    async def counted(res: Resource, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        lacking = res is PODS and [
            f"limits.{name} for: {container['name']}"
            for name in ("cpu", "memory")
            for container in (*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"])
            if name not in container["resources"].get("limits", {})
        ]
        if lacking:
            raise ApiError("Forbidden", f"forbidden: failed quota: q: must specify {'; '.join(lacking)}")
        return await create(res, obj, namespace, **how)

    virt.controller_api.create = counted  # type: ignore[method-assign]
    labels = {names.MEMORY_LIMITS_RATIO: label} if label else {}
    await virt.api.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": labels}})
    vmi = a_vmi()
    vmi["spec"]["domain"]["cpu"] = {"sockets": 3}
    await virt.create(VMIS, vmi)
    await virt.phase("Running")
    [pod] = await virt.pods()
    asked = pod["spec"]["containers"][0]["resources"]
    requested = Quantity.parse(asked["requests"]["memory"]).value()
    assert asked["limits"]["cpu"] == "3"
    assert Quantity.parse(asked["limits"]["memory"]).value() == int(requested * times)


@pytest.mark.parametrize("chosen", [True, False])
async def test_a_namespace_that_the_installation_selects_gets_a_limit_of_cpus(virt: Plane, chosen: bool) -> None:
    selector = {"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"limited": "yes"}}}
    await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": {"configuration": selector}}, NAMESPACE)
    await virt.api.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": {"limited": "yes" if chosen else "no"}}})
    await virt.create(VMIS, a_vmi())
    await virt.phase("Running")
    [pod] = await virt.pods()
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits.get("cpu") == ("1" if chosen else None) and "memory" not in limits


async def test_a_foreign_pod_of_that_name_is_shown_and_left_alone(virt: Plane) -> None:
    await virt.stop()
    vmi = await virt.create(VMIS, a_vmi())
    name = f"virt-launcher-vm-{vmi['metadata']['uid'].partition('-')[0]}"
    foreign = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    await virt.create(PODS, foreign)
    virt.start()
    told = await virt.condition("Synchronized", "False")
    assert name in told["message"]
    await virt.api.delete(PODS, name, NAMESPACE, grace=0)
    await virt.phase("Running")


def fleet(**pool: Any) -> Obj:
    configuration = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    entry = {
        "name": "gpu",
        "virtLauncherImage": "launcher:gpu",
        "nodeSelector": {"gpu": "true"},
        "selector": {"vmLabels": {"matchLabels": {"team": "ml"}}},
        **pool,
    }
    return {
        "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
        "spec": {"configuration": configuration, "virtHandlerPools": [entry]},
    }


async def test_the_pool_is_recorded_on_the_vmi(tmp_path: Path) -> None:
    async with plane(tmp_path, kubevirt=fleet()) as virt:
        await virt.create(VMIS, a_vmi(labels={"team": "ml"}))
        vmi = await virt.phase("Running")
        assert vmi["metadata"]["labels"][names.HANDLER_POOL] == "gpu"
        assert vmi["status"]["launcherContainerImageVersion"] == "launcher:gpu"


async def test_a_contradiction_is_shown_until_the_settings_change(tmp_path: Path) -> None:
    async with plane(tmp_path, kubevirt=fleet(hypervisor="cloud-hypervisor")) as virt:
        await virt.create(VMIS, a_vmi(labels={"team": "ml"}, hypervisor="qemu-kvm"))
        told = await virt.condition("Synchronized", "False")
        assert "gpu" in told["message"]
        assert await virt.pods() == []
        pools = fleet()["spec"]["virtHandlerPools"]
        await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": {"virtHandlerPools": pools}}, NAMESPACE)
        await virt.phase("Running")


# --- deletion and loss


@pytest.mark.usefixtures("told_at_once")
async def test_a_vmi_deleted_before_its_hand_over_takes_its_pod_with_it(virt: Plane) -> None:
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(VMIS, a_vmi())
    await virt.phase("Scheduling")
    await virt.api.delete(VMIS, "vm", NAMESPACE)
    await virt.gone(VMIS)
    assert await virt.pods() == []


@pytest.mark.usefixtures("told_at_once")
async def test_a_vmi_deleted_before_a_node_was_found_takes_its_pod_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over HTTP, where the answer about a Pod that is gone at once is no Pod."""
    async with (
        simulation(tmp_path / "store") as cluster,
        served(cluster) as url,
        Client(Config(url, insecure=True)) as client,
    ):
        virt = Plane(cluster)
        virt.kubelets.place = lambda pod: ""
        controller = asyncio.create_task(VirtController(client).run())
        await virt.create(VMIS, a_vmi())
        await virt.phase("Scheduling")
        await virt.api.delete(VMIS, "vm", NAMESPACE)
        await virt.gone(VMIS)
        assert await virt.pods() == []
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_running_vmi_stays_until_its_pod_is_gone(virt: Plane) -> None:
    virt.kubelets.lets_go = lambda pod: False
    await virt.create(VMIS, a_vmi())
    await virt.phase("Running")
    await virt.api.delete(VMIS, "vm", NAMESPACE)
    vmi = await virt.phase("Succeeded")
    assert vmi["metadata"]["finalizers"] == [names.VMI_FINALIZER]

    async def pod_is_going() -> Any:
        [pod] = await virt.pods()
        return pod["metadata"]["deletionTimestamp"]

    await virt.until(pod_is_going)  # which is written after the phase
    virt.kubelets.lets_go = lambda pod: True
    virt.kubelets.look_again()
    await virt.gone(VMIS)


@pytest.mark.parametrize("running", [False, True])
async def test_a_vmi_whose_pod_is_lost_after_the_hand_over_has_failed(virt: Plane, running: bool) -> None:
    virt.handlers.lets_run = lambda vmi: running
    await virt.create(VMIS, a_vmi())
    await virt.phase("Running" if running else "Scheduled")
    [pod] = await virt.pods()
    await virt.api.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
    vmi = await virt.phase("Failed")
    assert vmi["status"]["reason"] == "PodLost"
    await virt.until(lambda: _has_reason(virt, "PodLost"))
    assert await virt.pods() == []


async def test_nothing_is_lost_while_the_api_server_does_not_answer(virt: Plane) -> None:
    await virt.create(VMIS, a_vmi())
    await virt.phase("Running")
    asked, listing = 0, virt.controller_api.list

    async def away(*_: Any, **__: Any) -> list[Obj]:
        nonlocal asked
        asked += 1
        raise ApiError("ServiceUnavailable", "away")

    virt.controller_api.list = away  # type: ignore[method-assign]
    [pod] = await virt.pods()
    await virt.api.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)

    async def tried() -> bool:
        return asked > 2

    await virt.until(tried)
    assert (await virt.vmi())["status"]["phase"] == "Running"
    virt.controller_api.list = listing  # type: ignore[method-assign]
    await virt.phase("Failed")


@pytest.mark.usefixtures("told_at_once")
async def test_a_pod_that_a_node_refuses_fails_the_vmi_and_is_kept(virt: Plane) -> None:
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(VMIS, a_vmi())
    await virt.phase("Scheduling")
    [pod] = await virt.pods()
    refusal = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    await _report(virt, pod, refusal)
    vmi = await virt.phase("Failed")
    assert vmi["status"]["reason"] == "UnexpectedAdmissionError"
    await virt.until(lambda: _has_reason(virt, "UnexpectedAdmissionError"))
    assert len(await virt.pods()) == 1
    await virt.api.delete(VMIS, "vm", NAMESPACE)
    await virt.gone(VMIS)


async def test_a_pod_made_again_after_the_end_is_taken_away(virt: Plane) -> None:
    await virt.create(VMIS, a_vmi())
    await virt.phase("Running")
    [pod] = await virt.pods()
    await virt.stop()
    await virt.api.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
    meta = {key: pod["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(PODS, {"metadata": meta, "spec": spec})  # as a controller that knew nothing would
    virt.start()
    vmi = await virt.phase("Failed")
    assert vmi["status"]["reason"] == "PodLost"

    async def none_left() -> bool:
        return not await virt.pods()

    await virt.until(none_left)


async def test_readiness_follows_the_pod(virt: Plane) -> None:
    await virt.create(VMIS, a_vmi())
    await virt.condition("Ready")
    [pod] = await virt.pods()
    status = running_status(ready=False)
    status["conditions"][0] |= {"reason": "ContainersNotReady", "message": "probe fails"}
    await _report(virt, pod, status)
    told = await virt.condition("Ready", "False")
    assert (told["reason"], told["message"]) == ("ContainersNotReady", "probe fails")
    await _report(virt, pod, {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}]})
    await virt.condition("Ready")


async def test_a_paused_guest_is_not_ready(virt: Plane) -> None:
    await virt.create(VMS, a_vm())
    await virt.condition("Ready")
    ready = (await virt.vmi())["status"]["conditions"]
    paused = {"type": "Paused", "status": "True", "reason": "PausedByUser", "message": "VMI was paused by user"}
    await virt.api.patch(VMIS, "vm", {"status": {"conditions": [*ready, paused]}}, NAMESPACE)
    assert (await virt.condition("Ready", "False"))["reason"] == "Paused"
    await virt.until(lambda: _gate(virt, "False"))
    await virt.condition("Ready", "False", of=VMS)
    assert "ready" not in (await virt.printable("Paused"))["status"]
    now = (await virt.vmi())["status"]["conditions"]
    unpaused = [c for c in now if c["type"] != "Paused"]
    await virt.api.patch(VMIS, "vm", {"status": {"conditions": unpaused}}, NAMESPACE)
    await virt.condition("Ready")
    await virt.until(lambda: _gate(virt, "True"))


async def _gate(virt: Plane, status: str) -> bool:
    """Whether the readiness gate of the only Pod says so."""
    [pod] = await virt.pods()
    [gate] = pod["spec"]["readinessGates"]
    return conditions.holds(pod["status"]["conditions"], gate["conditionType"], status)


@pytest.mark.usefixtures("told_at_once")
async def test_labels_of_users_are_not_lost_on_the_way(virt: Plane) -> None:
    virt.kubelets.lets_run = lambda pod: False
    await virt.create(VMIS, a_vmi(labels={"mine": "1"}))
    await virt.phase("Scheduling")
    await virt.api.patch(VMIS, "vm", {"metadata": {"labels": {"late": "2"}}}, NAMESPACE)
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()
    vmi = await virt.phase("Running")
    assert vmi["metadata"]["labels"] == {"mine": "1", "late": "2", names.NODE_NAME: vmi["status"]["nodeName"]}


@pytest.mark.usefixtures("told_at_once")
async def test_a_cache_that_has_not_seen_the_pod_yet_does_not_fail_the_vmi(virt: Plane) -> None:
    """A new leader may list Pods before the old one made them, and VMIs after it said so."""
    await virt.stop()
    await virt.create(VMIS, a_vmi())
    virt.start()
    virt.kubelets.lets_run = lambda pod: False
    await virt.phase("Scheduling")
    await virt.stop()

    empty = LauncherPods(virt.api)
    vmi = decode_instance(orjson.dumps(await virt.vmi()))
    assert empty.of(vmi.uid) == []
    found = await empty.listed(vmi)
    assert [pod.uid for pod in found] == [pod["metadata"]["uid"] for pod in await virt.pods()]
