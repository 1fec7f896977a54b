"""VMs that are admitted and then cannot run: their owner is told why and what to do, and doing it is all it takes.

Nothing of it may turn into a loop: as long as nothing changes, there is one instance with one Pod that waits.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vm.trouble.fleet import Fleet, import_disk, machine, tiny
from waiting import eventually

pytestmark = pytest.mark.timeout(500)
PATIENCE = 100.0


class Owner:
    """Somebody with one VM."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self._kubectl = fleet.kubectl

    def creates(self, **spec: Any) -> None:
        self._kubectl.apply(machine(tiny(self.name, **spec)))

    def edits(self, **spec: Any) -> None:
        self._kubectl(
            "patch", "vm", self.name, "--type=merge", "-p", json.dumps({"spec": {"template": {"spec": spec}}})
        )

    def sees(self, *status: str) -> None:
        eventually(lambda: self._get("vm")["status"]["printableStatus"] in status, PATIENCE)

    def reads_condition(self, kind: str, *words: str) -> None:
        eventually(lambda: _says(self._condition(kind)["message"], words), PATIENCE)

    def reads_event(self, reason: str, *words: str) -> None:
        about = f"involvedObject.uid={self._uid('vmi')},reason={reason}"
        events = ("get", "events", "--field-selector", about)
        eventually(lambda: any(_says(e["message"], words) for e in self._kubectl.json(*events)["items"]), PATIENCE)

    def has_one_instance_throughout(self) -> None:
        """No instance and no Pod was made a second time."""
        about = f"involvedObject.uid={self._uid('vm')},reason=SuccessfulCreate"
        assert len(self._kubectl.json("get", "events", "--field-selector", about)["items"]) == 1
        pods = self._kubectl.json("get", "pods", "-l", f"vm.kubevirt.io/name={self.name}")["items"]
        assert len(pods) <= 1

    def deletes(self) -> None:
        self._kubectl("delete", "vm", self.name, "--ignore-not-found", "--timeout=80s")

    def _uid(self, kind: str) -> str:
        """By which its events are told from those of one that had its name before."""
        uid: str = self._get(kind)["metadata"]["uid"]
        return uid

    def _get(self, kind: str) -> Any:
        return self._kubectl.json("get", kind, self.name)

    def _condition(self, kind: str) -> Any:
        return next(c for c in self._get("vmi")["status"]["conditions"] if c["type"] == kind and c["status"] == "False")


def _says(text: str, words: tuple[str, ...]) -> bool:
    return all(word in text for word in words)


@pytest.fixture
def owner(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Owner]:
    made = Owner(fleet, request.node.name.removeprefix("test_")[:30].replace("_", "-").rstrip("-"))
    yield made
    made.deletes()


def from_image(image: str) -> dict[str, Any]:
    return {"name": "root", "containerDisk": {"image": image, "imagePullPolicy": "IfNotPresent"}}


def test_an_image_that_nobody_has(fleet: Fleet, owner: Owner, tmp_path: Path) -> None:
    image = f"localhost:1/nothing:{uuid.uuid4().hex}"
    owner.creates(volumes=[from_image(image)])
    owner.sees("ErrImagePull", "ImagePullBackOff")
    owner.reads_condition("Synchronized", image, "connection refused")
    owner.reads_event("ErrImagePull", image)
    owner.has_one_instance_throughout()
    import_disk(fleet, tmp_path / "image.tar", image, bytes(1 << 20))
    owner.sees("Running")


def test_a_claim_that_does_not_exist(fleet: Fleet, owner: Owner) -> None:
    owner.creates(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "nothing"}}])
    owner.sees("ErrorPvcNotFound")
    owner.reads_condition("Synchronized", "/nothing does not exist, waiting for it to appear")
    owner.reads_event("FailedPvcNotFound", "/nothing does not exist")
    owner.has_one_instance_throughout()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "nothing"}}
    fleet.kubectl.apply({**kind, "spec": claim})
    owner.sees("Running")
    owner.deletes()
    fleet.kubectl("delete", "pvc", "nothing", "--timeout=60s")


def test_more_memory_than_any_node_has(owner: Owner) -> None:
    owner.creates(memory="900Gi")
    owner.sees("ErrorUnschedulable")
    owner.reads_condition("PodScheduled", "Insufficient memory")
    owner.reads_event("FailedScheduling", "ask for less memory")
    owner.has_one_instance_throughout()
    owner.edits(domain={"memory": {"guest": "64Mi"}})
    owner.sees("Running")


def test_labels_that_no_node_has(owner: Owner) -> None:
    owner.creates(nodeSelector={"far": "away"})
    owner.sees("ErrorUnschedulable")
    owner.reads_condition("PodScheduled", "node affinity/selector")
    owner.reads_event("FailedScheduling", "nodeSelector", "--show-labels")
    owner.has_one_instance_throughout()
    owner.edits(nodeSelector=None)
    owner.sees("Running")


def test_a_machine_type_that_no_node_has(fleet: Fleet, owner: Owner) -> None:
    owner.creates(domain={"memory": {"guest": "64Mi"}, "machine": {"type": "pc-q35-9.9"}, "devices": {}}, networks=[])
    owner.sees("ErrorUnschedulable")
    owner.reads_condition("PodScheduled", "node affinity/selector")
    owner.reads_event("FailedScheduling", "machine type", "--show-labels")
    owner.has_one_instance_throughout()
    owner.edits(domain={"machine": {"type": "q35"}})
    owner.sees("Running")
    runs_on = fleet.kubectl.json("get", "vmi", owner.name)["status"]["machine"]["type"]
    assert runs_on.startswith("pc-q35-"), "the version behind the alias"


def test_a_disk_that_another_vm_has_open(fleet: Fleet, owner: Owner) -> None:
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}
    fleet.kubectl.apply({**kind, "spec": claim})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
    first = Owner(fleet, "first")
    first.creates(volumes=volumes)
    first.sees("Running")
    owner.creates(volumes=volumes)
    owner.reads_condition("Synchronized", "another VM has this disk open", "stop that VM")
    owner.reads_event("SyncFailed", "another VM has this disk open")
    owner.sees("Starting")
    owner.has_one_instance_throughout()
    first.deletes()
    owner.sees("Running")
    owner.deletes()
    fleet.kubectl("delete", "pvc", "shared", "--timeout=60s")


def test_a_device_that_no_node_offers(owner: Owner) -> None:
    gpu = {"name": "gpu", "deviceName": "example.com/rare"}
    devices = {"gpus": [gpu], "autoattachGraphicsDevice": False, "autoattachPodInterface": False}
    owner.creates(domain={"memory": {"guest": "64Mi"}, "devices": devices}, networks=[])
    owner.sees("ErrorUnschedulable")
    owner.reads_condition("PodScheduled", "Insufficient example.com/rare")
    owner.reads_event("FailedScheduling", "example.com/rare", "add a node that has it")
    owner.has_one_instance_throughout()
    owner.edits(domain={"devices": {"gpus": None}})
    owner.sees("Running")


def test_a_disk_that_is_broken(fleet: Fleet, owner: Owner, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1M"], check=True)
    content = bytearray(disk.read_bytes())
    content[40:48] = b"\xff" * 8  # where the table of its clusters begins
    import_disk(fleet, tmp_path / "broken.tar", "virtfleet/disk:broken", bytes(content))
    import_disk(fleet, tmp_path / "whole.tar", "virtfleet/disk:whole", disk.read_bytes())
    owner.creates(volumes=[from_image("virtfleet/disk:broken")])
    owner.reads_condition("Synchronized", "volume 'root'", "damaged", "replace it")
    owner.reads_event("SyncFailed", "damaged")
    owner.sees("Starting")
    owner.has_one_instance_throughout()
    owner.edits(volumes=[from_image("virtfleet/disk:whole")])
    owner.sees("Running")
