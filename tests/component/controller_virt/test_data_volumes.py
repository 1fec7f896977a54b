"""DataVolumes on a simulated cluster: what virt-controller makes of them, and of what happens to their importers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vm, a_vmi

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.kube.resource import CRDS, DATA_VOLUMES, PERSISTENT_VOLUME_CLAIMS, PODS, VMIS, VMS, Obj
from virtfleet.protocol.importing import HOPELESS, Job, Source


def volume(source: Obj | None = None, name: str = "disk", **spec: Any) -> Obj:
    storage = {"resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": DATA_VOLUMES.api_version,
        "kind": DATA_VOLUMES.kind,
        "metadata": {"name": name},
        "spec": {"source": source or {"blank": {}}, "storage": storage, **spec},
    }


async def importer(virt: Plane, other_than: str = "") -> Obj:
    async def there() -> Obj | None:
        found = await virt.api.list(PODS, NAMESPACE, labels=f"{names.APP_LABEL}={names.IMPORTER_APP}")
        return next((p for p in found if p["metadata"]["uid"] != other_than and not _going(p)), None)

    pod: Obj = await virt.until(there)
    return pod


def _going(pod: Obj) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


async def ends(virt: Plane, pod: Obj, phase: str, code: int = 0, words: str = "") -> None:
    """The kubelet says how an importer ended; one whose Pod is not at its end is begun again."""
    ended = {"terminated": {"exitCode": code, "message": words, "reason": "Error" if code else "Completed"}}
    status = {"name": "importer", "restartCount": 1 if code else 0, "ready": False, "image": "", "imageID": ""}
    status |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended} if code else {"state": ended}
    patch = {"status": {"phase": phase, "containerStatuses": [status]}}
    await virt.api.patch(PODS, pod["metadata"]["name"], patch, NAMESPACE, subresource="status")


async def reached(virt: Plane, phase: str, name: str = "disk") -> Obj:
    async def there() -> Obj | None:
        found = await virt.api.get(DATA_VOLUMES, name, NAMESPACE)
        return found if found.get("status", {}).get("phase") == phase else None

    found: Obj = await virt.until(there)
    return found


def running(volume: Obj) -> str:
    return str(next(c.get("message", "") for c in volume["status"]["conditions"] if c["type"] == "Running"))


async def test_a_claim_is_made_and_filled_by_an_unprivileged_pod(virt: Plane) -> None:
    made = await virt.create(DATA_VOLUMES, volume({"http": {"url": "http://web/disk", "secretRef": "login"}}))
    pod = await importer(virt)
    claim = await virt.api.get(PERSISTENT_VOLUME_CLAIMS, "disk", NAMESPACE)
    assert claim["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert int(claim["spec"]["resources"]["requests"]["storage"]) > 1 << 30, "the file system takes its part"
    [container] = pod["spec"]["containers"]
    verb, job = container["args"]
    read = orjson.loads(job)
    assert (verb, read) == ("import", {"source": "http", "size": 1 << 30, "url": "http://web/disk"})
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    sources = {kind for v in pod["spec"]["volumes"] for kind in v if kind != "name"}
    assert sources == {"persistentVolumeClaim", "emptyDir", "secret"}
    assert Job(Source.HTTP, 1 << 30, url="http://web/disk")

    await ends(virt, pod, "Succeeded")
    done = await reached(virt, "Succeeded")
    assert done["status"]["progress"] == "100.0%"
    await virt.gone(PODS, pod["metadata"]["name"])
    claim = await virt.api.get(PERSISTENT_VOLUME_CLAIMS, "disk", NAMESPACE)
    assert claim["metadata"]["annotations"][names.FILLING_PHASE] == "Succeeded"


async def test_an_importer_that_is_lost_is_made_anew_and_a_hopeless_one_is_the_end(virt: Plane) -> None:
    await virt.create(DATA_VOLUMES, volume())
    first = await importer(virt)
    await ends(virt, first, "Failed", 137)  # its node went down
    second = await importer(virt, other_than=first["metadata"]["uid"])
    await ends(virt, second, "Running", 1, "the server answers 404")

    async def told() -> bool:
        found = await virt.api.get(DATA_VOLUMES, "disk", NAMESPACE)
        return "404" in running(found) and found["status"]["restartCount"] == 1

    await virt.until(told)
    await virt.stop()
    await ends(virt, second, "Running", HOPELESS, "the disk is too large")
    virt.start()  # another controller reads it from the Pod
    failed = await reached(virt, "Failed")
    assert running(failed) == "the disk is too large"
    await virt.gone(PODS, second["metadata"]["name"])


async def test_an_image_that_cannot_be_pulled_is_an_import_that_fails_and_is_tried_again(virt: Plane) -> None:
    await virt.create(DATA_VOLUMES, volume({"registry": {"url": "docker://127.0.0.1/none:latest"}}))
    pod = await importer(virt)
    await reached(virt, "ImportScheduled")
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "connection refused"}}
    status = {"name": "importer", "restartCount": 0, "ready": False, "image": "", "imageID": "", "state": waiting}
    patch = {"status": {"phase": "Pending", "containerStatuses": [status]}}
    await virt.api.patch(PODS, pod["metadata"]["name"], patch, NAMESPACE, subresource="status")
    assert running(await reached(virt, "ImportInProgress")) == "ErrImagePull: connection refused"


async def test_a_vm_brings_its_data_volume_along_and_starts_when_it_is_filled(virt: Plane) -> None:
    vm = a_vm(runStrategy="Always")
    vm["spec"]["template"]["spec"]["volumes"] = [{"name": "root", "dataVolume": {"name": "disk"}}]
    template = volume()
    vm["spec"]["dataVolumeTemplates"] = [{"metadata": template["metadata"], "spec": template["spec"]}]
    await virt.create(VMS, vm)
    pod = await importer(virt)
    await virt.printable("Provisioning")
    assert not await virt.api.list(VMIS, NAMESPACE)
    await ends(virt, pod, "Succeeded")
    await virt.until(virt.vmi)
    made = await virt.api.get(DATA_VOLUMES, "disk", NAMESPACE)
    assert made["metadata"]["ownerReferences"][0]["kind"] == VMS.kind


async def test_a_vmi_says_whether_its_data_volumes_are_filled(virt: Plane) -> None:
    await virt.create(DATA_VOLUMES, volume())
    await virt.create(VMIS, a_vmi(volumes=[{"name": "root", "dataVolume": {"name": "disk"}}]))
    pod = await importer(virt)
    assert (await virt.condition("DataVolumesReady", "False"))["reason"] == "NotAllDVsReady"
    await ends(virt, pod, "Succeeded")
    assert (await virt.condition("DataVolumesReady", "True"))["reason"] == "AllDVsReady"
    await virt.phase("Running")
    assert await virt.condition("DataVolumesReady", "True")


async def test_a_vm_says_that_its_data_volume_fails(virt: Plane) -> None:
    await virt.create(DATA_VOLUMES, volume())
    vm = a_vm(runStrategy="Always")
    vm["spec"]["template"]["spec"]["volumes"] = [{"name": "root", "dataVolume": {"name": "disk"}}]
    await virt.create(VMS, vm)
    await ends(virt, await importer(virt), "Running", HOPELESS, "no")
    await virt.printable("DataVolumeError")


async def test_a_copy_waits_for_its_source(virt: Plane) -> None:
    await virt.create(DATA_VOLUMES, volume({"pvc": {"name": "first", "namespace": NAMESPACE}}))
    assert "no claim first" in running(await reached(virt, "Pending"))
    await virt.create(DATA_VOLUMES, volume(name="first"))
    pod = await importer(virt)
    assert orjson.loads(pod["spec"]["containers"][0]["args"][1])["source"] == "blank"
    await ends(virt, pod, "Succeeded")
    copying = await importer(virt, other_than=pod["metadata"]["uid"])
    mounted = {
        v["name"]: v["persistentVolumeClaim"] for v in copying["spec"]["volumes"] if "persistentVolumeClaim" in v
    }
    assert mounted == {"target": {"claimName": "disk"}, "source": {"claimName": "first", "readOnly": True}}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"pvc": {"name": "theirs", "namespace": "elsewhere"}}, "one namespace only"),
        ({"http": {"url": "file:///etc/passwd"}}, "web server"),
        ({"http": {"url": 7}}, "spec"),
        ({"http": {"url": "http://x/y", "insecureSkipVerify": True}}, "does not do that"),
        ({"registry": {"url": "docker://a b"}}, "must name an image"),
        ({"s3": {"url": "http://x"}}, "does not import from s3"),
        ({"blank": {}, "upload": {}}, "exactly one source"),
    ],
)
async def test_what_cannot_be_done_fails_with_the_field_and_makes_nothing(virt: Plane, source: Obj, why: str) -> None:
    """Admission refuses these; here it was not asked."""
    await virt.create(DATA_VOLUMES, volume(source))
    assert why in running(await reached(virt, "Failed"))
    assert not await virt.api.list(PODS, NAMESPACE)
    assert not await virt.api.list(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)


async def test_nothing_is_done_where_cdi_is_installed(virt: Plane) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kind = {"plural": "cdis", "singular": "cdi", "kind": "CDI", "listKind": "CDIList"}
    spec = {"group": names.CDI_GROUP, "scope": "Cluster", "names": kind, "versions": [version]}
    await virt.stop()
    await virt.api.create(CRDS, {"metadata": {"name": names.CDI_DEFINITION}, "spec": spec})
    virt.start()
    await virt.create(DATA_VOLUMES, volume(name="theirs"))
    vm = a_vm(runStrategy="Always")
    vm["spec"]["template"]["spec"]["volumes"] = [{"name": "root", "dataVolume": {"name": "theirs"}}]
    await virt.create(VMS, vm)
    await virt.printable("Provisioning")  # the VM waits for CDI's as for ours
    found = await virt.api.get(DATA_VOLUMES, "theirs", NAMESPACE)
    assert "status" not in found
    await virt.api.delete(CRDS, names.CDI_DEFINITION)
    await virt.api.patch(CRDS, names.CDI_DEFINITION, {"metadata": {"finalizers": None}})  # nobody cleans up here
    await importer(virt)  # and without CDI it is ours again
