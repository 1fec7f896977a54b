"""Volumes of running VMs as the controller sees them: requests, attachment Pods, and the status of each volume."""

from __future__ import annotations

from typing import Any

from virt_plane import Plane, a_vm

from bench.simulator import NAMESPACE, running_status
from virtfleet.api import names
from virtfleet.kube.api import Patch
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, PODS, VMIS, VMS, Obj

ADD = {
    "addVolumeOptions": {
        "name": "data",
        "disk": {"name": "data", "disk": {"bus": "scsi"}},
        "volumeSource": {"persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}},
    }
}
REMOVE = {"removeVolumeOptions": {"name": "data"}}
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


async def ask(virt: Plane, *requests: Obj) -> None:
    await virt.api.patch(VMS, "vm", {"status": {"volumeRequests": list(requests)}}, NAMESPACE, subresource="status")


async def attachments(virt: Plane) -> list[Obj]:
    pods = [p for p in await virt.pods() if p["metadata"].get("labels", {}).get(names.APP_LABEL) == names.HOTPLUG_APP]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


async def runs(virt: Plane, after: str = "") -> Obj:
    """The one attachment Pod, other than an earlier one, which its kubelet has started."""

    async def made() -> Obj | None:
        found = [pod for pod in await attachments(virt) if pod["metadata"]["uid"] != after]
        return found[0] if len(found) == 1 else None

    pod: Obj = await virt.until(made)
    status = running_status()
    status["containerStatuses"][0]["name"] = names.HOTPLUG_APP
    patch = {"status": status}
    await virt.api.patch(PODS, pod["metadata"]["name"], patch, NAMESPACE, how=Patch.STRATEGIC, subresource="status")
    return pod


async def entry(virt: Plane) -> Obj:
    found = (await virt.vmi())["status"].get("volumeStatus") or ()
    return next((each for each in found if each["name"] == "data"), {})


async def phase(virt: Plane, wanted: str, uid: str = "") -> Obj:
    async def reached() -> Obj | None:
        now = await entry(virt)
        by = now.get("hotplugVolume", {}).get("attachPodUID", "")
        return now if now.get("phase") == wanted and uid in ("", by) else None

    found: Obj = await virt.until(reached)
    return found


async def says(virt: Plane, phase: str) -> None:
    """What the handler writes, again where somebody else was faster."""

    async def written() -> Any:
        vmi = await virt.vmi()
        entries = [{**e, "phase": phase} if e["name"] == "data" else e for e in vmi["status"]["volumeStatus"]]
        about = {"resourceVersion": vmi["metadata"]["resourceVersion"]}
        return await virt.api.patch(VMIS, "vm", {"metadata": about, "status": {"volumeStatus": entries}}, NAMESPACE)

    await virt.until(written)


async def with_a_volume(virt: Plane) -> Obj:
    virt.start()
    await virt.create(VMS, a_vm())

    async def running() -> Any:
        return (await virt.vmi())["status"]["phase"] == "Running"

    await virt.until(running)
    await ask(virt, ADD)
    assert (await phase(virt, "Pending"))["message"] == "claim data does not exist; create it"
    await virt.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    pod = await runs(virt)
    await phase(virt, "AttachedToNode", pod["metadata"]["uid"])
    await says(virt, "Ready")
    return pod


async def test_a_volume_is_requested_attached_and_taken_away(virt: Plane) -> None:
    pod = await with_a_volume(virt)
    vmi, vm = await virt.vmi(), await virt.vm()
    assert "volumeRequests" not in vm["status"] or not vm["status"]["volumeRequests"]
    for spec in (vm["spec"]["template"]["spec"], vmi["spec"]):
        assert spec["volumes"][-1]["name"] == spec["domain"]["devices"]["disks"][-1]["name"] == "data"
    assert not any(c["type"] == "RestartRequired" for c in vm["status"].get("conditions", ()))
    launcher = next(p for p in await virt.pods() if p["metadata"]["labels"][names.APP_LABEL] == names.LAUNCHER_APP)
    assert pod["metadata"]["name"].startswith("hp-volume-")
    assert [o["uid"] for o in pod["metadata"]["ownerReferences"]] == [launcher["metadata"]["uid"]]
    assert pod["spec"]["containers"][0]["image"] == launcher["spec"]["containers"][0]["image"]
    [term] = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == [vmi["status"]["nodeName"]]

    await ask(virt, REMOVE)
    await phase(virt, "Detaching")
    await virt.stop()
    virt.start()  # another one goes on
    assert await attachments(virt), "the guest has not let go of it (KubeVirt #13481)"
    await says(virt, "UnMountedFromPod")

    async def gone() -> bool:
        return not await entry(virt) and not await attachments(virt)

    await virt.until(gone)
    assert (await virt.vm())["spec"]["template"]["spec"]["volumes"] == []


async def test_one_that_ends_is_followed_by_another_while_the_volume_stays_in_use(virt: Plane) -> None:
    pod = await with_a_volume(virt)
    for _ in range(3):
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        await virt.api.delete(PODS, name, NAMESPACE)
        pod = await runs(virt, after=uid)
        await phase(virt, "Ready", pod["metadata"]["uid"])
    assert len(await attachments(virt)) == 1


async def test_out_and_in_again_at_once_converges(virt: Plane) -> None:
    pod = await with_a_volume(virt)
    await ask(virt, REMOVE)
    await phase(virt, "Detaching")
    await ask(virt, ADD)
    await phase(virt, "AttachedToNode", pod["metadata"]["uid"])
    await says(virt, "Ready")
    await ask(virt, REMOVE)
    await phase(virt, "Detaching")
    await says(virt, "UnMountedFromPod")
    await ask(virt, ADD)

    async def again() -> bool:  # with the Pod that was there, or with another one
        pod = await runs(virt)
        now = await entry(virt)
        return now["phase"] == "AttachedToNode" and now["hotplugVolume"]["attachPodUID"] == pod["metadata"]["uid"]

    await virt.until(again)
    assert len(await attachments(virt)) == 1
