"""Volumes that are plugged into a running VM and out of it, with the real virtctl and a real guest.

upstream-defects by number, each beside the test that shows it; that unplugging asks the guest first (#13481) is shown
by `component/controller_virt/test_plugging.py`, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from cluster.clusters import Cluster
from docblocks import following, shown
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.plugged import Plugged, claim
from vm.reader import environment
from vm.test_virtctl import virtctl
from waiting import eventually

NAMESPACE = "plugging"

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield Plugged(used)


def domain(web: Plugged) -> Element:
    """The VM as libvirt has it."""
    running = ("-l", "kubevirt.io=virt-launcher", "--field-selector=status.phase=Running")
    [pod] = web.kubectl.json("get", "pods", *running)["items"]
    words = ("exec", pod["metadata"]["name"], "-c", "compute", "--", "virsh", "dumpxml", f"{NAMESPACE}_web")
    return fromstring(web.kubectl(*words))


def restart_required(web: Plugged) -> str:
    """What the VM says waits for a restart; nothing where nothing does."""
    conditions = web.used.vm()["status"].get("conditions", ())
    return next((c["message"] for c in conditions if (c["type"], c["status"]) == ("RestartRequired", "True")), "")


def test_a_volume_comes_and_goes_and_comes_again_with_what_was_written(web: Plugged, tmp_path: Path) -> None:
    web.kubectl.apply(claim("data"), claim("fast", block=True))
    reader = environment(web.kubectl.cluster, tmp_path, NAMESPACE, virtctl=virtctl())
    with following(shown(__file__, "virtctl addvolume"), tmp_path, reader) as step:
        step()
        status = web.ready("data")
        disk = web.sees("data")
        assert status["target"] == disk
        [pod] = web.attachments()
        told = {"attachPodName": pod["metadata"]["name"], "attachPodUID": pod["metadata"]["uid"]}
        assert status["hotplugVolume"] == told
        assert pod["metadata"]["name"].startswith("hp-volume-")
        web.guest(f"echo kept | dd of=/dev/{disk} conv=fsync")
        step()
        assert web.ready("fast")["target"].startswith("vd")
        step()
        eventually(lambda: not web.status("data") and len(web.attachments()) == 1, PATIENCE)
        eventually(lambda: not web.disk("data"), PATIENCE)
    web.virtctl("removevolume", "web", "--volume-name=fast")
    web.gone("fast")

    web.virtctl("addvolume", "web", "--volume-name=data")
    web.ready("data")
    assert "kept" in web.guest(f"head -c 4 /dev/{web.sees('data')}; echo")
    assert {"VolumeReady", "VolumeUnMountedFromPod"} <= web.events("data")


def test_the_guest_does_not_notice_that_who_brought_its_disk_ends(web: Plugged) -> None:
    """Neither the attachment Pod, twice, nor the handler (#9263, harvester#3586); nor a second disk (#6564)."""
    disk = web.sees("data")
    with web.writing(disk):
        for _ in range(2):  # KubeVirt's guests lose their disk at the second time
            [pod] = [p for p in web.attachments() if "deletionTimestamp" not in p["metadata"]]
            web.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
            old = pod["metadata"]["uid"]
            eventually(lambda old=old: web.ready("data")["hotplugVolume"]["attachPodUID"] != old, PATIENCE)
        node = (web.used.vmi() or {})["status"]["nodeName"]
        handlers = web.kubectl.json("get", "pods", "-A", "-l", "kubevirt.io=virt-handler")["items"]
        [handler] = [p["metadata"] for p in handlers if p["spec"]["nodeName"] == node]
        web.kubectl("-n", handler["namespace"], "delete", "pod", handler["name"], "--grace-period=1")
        web.kubectl.apply(claim("second", block=True))
        web.virtctl("addvolume", "web", "--volume-name=second", "--bus=virtio", "--serial=second", "--cache=none")
        web.ready("second")
        assert web.ready("data")["target"] == disk


def test_a_block_claim_is_a_disk_on_either_bus(web: Plugged) -> None:
    disk = web.sees("second")
    assert disk.startswith("vd")
    shown = next(d for d in domain(web).iterfind("devices/disk") if d.findtext("serial") == "second")
    driver, target = shown.find("driver"), shown.find("target")
    assert driver is not None and target is not None
    assert (driver.get("cache"), target.get("bus")) == ("none", "virtio")
    web.guest(f"echo block | dd of=/dev/{disk} conv=fsync")
    web.kubectl.apply(claim("third", block=True))
    web.virtctl("addvolume", "web", "--volume-name=third", "--dry-run")
    assert not web.status("third")
    web.virtctl("addvolume", "web", "--volume-name=third", "--persist")
    assert web.ready("third")["target"].startswith("sd")
    assert "already exists" in web.refused("addvolume", "web", "--volume-name=third")
    # Out, and at once in again: it ends with the disk that was asked for last (#17139).
    web.virtctl("removevolume", "web", "--volume-name=second")
    eventually(lambda: "second" not in str(web.used.vm()["spec"]), PATIENCE)
    web.virtctl("addvolume", "web", "--volume-name=second", "--bus=virtio", "--serial=second")
    eventually(lambda: "second" in str(web.used.vm()["spec"]), PATIENCE)
    web.ready("second")
    eventually(lambda: "block" in web.guest(f"head -c 5 /dev/{web.sees('second')}; echo"), PATIENCE)


def test_what_is_plugged_in_is_there_after_a_restart_and_can_still_go(web: Plugged) -> None:
    """KubeVirt #13620 and #6010."""
    assert not restart_required(web)
    web.guest(f"echo medium | dd of=/dev/{web.sees('data')} conv=fsync")
    # A drive, and to be moved by a drain: both take a restart.
    web.edit(disks=[{"name": "cd", "cdrom": {"bus": "scsi"}}])
    patch = '{"spec":{"template":{"spec":{"evictionStrategy":"LiveMigrate"}}}}'
    web.kubectl("patch", "vm", "web", "--type=merge", "-p", patch)
    before = web.used.runs()
    web.virtctl("restart", "web")
    web.used.runs(other_than=before)
    web.used.wait_for_agent()
    assert all(web.ready(volume)["target"] for volume in ("data", "second", "third"))
    assert "block" in web.guest(f"head -c 5 /dev/{web.sees('second')}; echo")
    for volume in ("data", "second", "third"):
        web.virtctl("removevolume", "web", f"--volume-name={volume}")
    for volume in ("data", "second", "third"):
        web.gone(volume)
    assert not web.attachments()
    assert [v["name"] for v in web.used.vm()["spec"]["template"]["spec"]["volumes"]] == ["root", "seed"]


def test_a_volume_comes_and_goes_with_the_template_and_may_be_a_data_volume(web: Plugged) -> None:
    source = {"name": "data", "hotpluggable": True}  # the claim is there, whoever has filled it
    disk = {"name": "declared", "serial": "declared", "disk": {"bus": "scsi"}}
    web.edit(volumes=[{"name": "declared", "dataVolume": source}], disks=[disk])
    assert web.ready("declared")["persistentVolumeClaimInfo"]["claimName"] == "data"
    assert "medium" in web.guest(f"head -c 6 /dev/{web.sees('declared')}; echo")
    web.edit(without=["declared"])
    web.gone("declared")
    eventually(lambda: not web.disk("declared"), PATIENCE)
    assert not restart_required(web)


def test_what_cannot_be_plugged_waits_for_a_restart(web: Plugged) -> None:
    """As in KubeVirt, only claims come to a running VM: not what a ConfigMap or a Secret says."""
    web.kubectl("create", "configmap", "settings", "--from-literal=key=value")
    disk = {"name": "settings", "disk": {"bus": "scsi"}}
    web.edit(volumes=[{"name": "settings", "configMap": {"name": "settings"}}], disks=[disk])
    eventually(lambda: "volumes" in restart_required(web), PATIENCE)
    assert not web.status("settings")
    web.edit(without=["settings"])
    eventually(lambda: not restart_required(web), PATIENCE)


def test_a_lun_takes_a_scsi_device_and_says_so(web: Plugged) -> None:
    """A claim that is none is refused by QEMU; the VM and what is plugged in later have nothing of it."""
    web.kubectl.apply(claim("fourth", block=True))
    web.virtctl("addvolume", "web", "--volume-name=fourth", "--disk-type=lun")

    def refusal() -> str:
        conditions = (web.used.vmi() or {})["status"].get("conditions", ())
        said = (c.get("message", "") for c in conditions if (c["type"], c["status"]) == ("Synchronized", "False"))
        return next(said, "")

    assert "volume fourth cannot be a lun" in eventually(refusal, PATIENCE)
    assert web.status("fourth")["phase"] == "MountedToPod"
    web.virtctl("addvolume", "web", "--volume-name=second")
    web.ready("second")
    for volume in ("second", "fourth"):
        web.virtctl("removevolume", "web", f"--volume-name={volume}")
        web.gone(volume)
    eventually(lambda: not refusal(), PATIENCE)


def test_media_are_inserted_exchanged_and_ejected(web: Plugged) -> None:
    def medium() -> str:
        return web.guest("head -c 6 /dev/sr0 2>/dev/null; echo").strip()

    drive = {"claimName": "data", "hotpluggable": True}
    assert medium() == ""
    web.edit(volumes=[{"name": "cd", "persistentVolumeClaim": drive}])
    eventually(lambda: medium() == "medium", PATIENCE)
    assert web.ready("cd")["target"].startswith("sd")
    web.edit(volumes=[{"name": "cd", "persistentVolumeClaim": {**drive, "claimName": "second"}}])
    eventually(lambda: medium().startswith("block"), PATIENCE)
    assert web.ready("cd")["persistentVolumeClaimInfo"]["claimName"] == "second"
    web.edit()
    web.gone("cd")
    eventually(lambda: medium() == "", PATIENCE)
    assert not restart_required(web)


def test_a_volume_moves_with_its_vm(web: Plugged) -> None:
    web.kubectl.apply(claim("data"))
    web.kubectl.apply(claim("second", block=True))
    web.virtctl("addvolume", "web", "--volume-name=data")
    web.virtctl("addvolume", "web", "--volume-name=second", "--bus=virtio", "--serial=second")
    web.ready("data"), web.ready("second")
    disk, before = web.sees("data"), (web.used.vmi() or {})["status"]["nodeName"]
    web.guest(f"echo block | dd of=/dev/{web.sees('second')} conv=fsync")
    with web.writing(disk):
        web.virtctl("migrate", "web")
        eventually(lambda: (web.used.vmi() or {})["status"]["nodeName"] != before, 3 * PATIENCE)
        node = (web.used.vmi() or {})["status"]["nodeName"]

        def only_there() -> bool:
            return {p["spec"].get("nodeName") for p in web.attachments()} == {node}

        eventually(only_there, PATIENCE)
    uids = {p["metadata"]["uid"] for p in web.attachments()}
    eventually(lambda: {web.ready(v)["hotplugVolume"]["attachPodUID"] for v in ("data", "second")} == uids, PATIENCE)
    assert "block" in web.guest(f"head -c 5 /dev/{web.sees('second')}; echo")
    web.virtctl("removevolume", "web", "--volume-name=second")
    web.gone("second")
    assert web.sees("data") == disk


def test_a_drain_takes_the_volume_along_with_its_vm(web: Plugged) -> None:
    """The Pod that attaches it is evicted, too; in KubeVirt that goes first, and takes the disk with it (#13523)."""
    if not web.status("data"):  # this test alone
        web.kubectl.apply(claim("data"))
        web.virtctl("addvolume", "web", "--volume-name=data")
    disk, before = web.sees("data"), web.used.vmi() or {}
    node = before["status"]["nodeName"]
    chosen = "--pod-selector=kubevirt.io in (virt-launcher, hotplug-disk)"
    with web.writing(disk):
        try:
            web.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", chosen)
            after = web.used.vmi() or {}
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            assert after["status"]["nodeName"] != node
            eventually(
                lambda: {p["spec"].get("nodeName") for p in web.attachments()} == {after["status"]["nodeName"]},
                PATIENCE,
            )
        finally:
            web.kubectl("uncordon", node)
    assert web.ready("data")["target"] == disk
