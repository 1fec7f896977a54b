"""Requests to plug volumes in and out: what is checked before anything is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from virtfleet.api.view import read
from virtfleet.api.vm import VirtualMachine
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.gateway import volumes
from virtfleet.gateway.vms import Vm, Vmi
from virtfleet.kube.errors import ApiError

VOLUMES = [
    {"name": "root", "containerDisk": {"image": "i"}},
    {"name": "plugged", "persistentVolumeClaim": {"claimName": "claim", "hotpluggable": True}},
]
ADDED: dict[str, Any] = {
    "name": "data",
    "disk": {"disk": {"bus": "scsi"}, "serial": "data"},
    "volumeSource": {"persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}},
}


def machines() -> list[Vm | Vmi]:
    vm = {"metadata": {"name": "vm"}, "spec": {"template": {"spec": {"volumes": VOLUMES}}}}
    vmi = {"metadata": {"name": "vm"}, "spec": {"volumes": VOLUMES}}
    return [Vm(vm, read(VirtualMachine, vm)), Vmi(vmi, read(VirtualMachineInstance, vmi))]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 400, "requires name"),
        ({**ADDED, "disk": None}, 400, "requires disk"),
        ({**ADDED, "volumeSource": None}, 400, "requires VolumeSource"),
        ({**ADDED, "volumeSource": {}}, 400, "requires VolumeSource"),
        ({**ADDED, "volumeSource": {"configMap": {"name": "c"}}}, 400, "not configMap: to give the VM one, add it"),
        ({**ADDED, "volumeSource": {"secret": {"secretName": "s"}}}, 400, "not secret: to give the VM one, add it"),
        ({**ADDED, "disk": {"disk": {"bus": "sata"}}}, 400, "bus scsi or virtio"),
        ({**ADDED, "name": "root"}, 409, "volume with that name already exists"),
        ({**ADDED, "volumeSource": {"dataVolume": {"name": "claim"}}}, 409, "volume source [claim]"),
        ({**ADDED, "name": "../data"}, 400, "cannot be the name of a volume"),
    ],
)
def test_a_volume_that_cannot_be_plugged_in_is_refused(body: Any, code: int, words: str) -> None:
    for machine in machines():
        with pytest.raises(ApiError) as refusal:
            volumes.check_add(machine, msgspec.convert(body, volumes.AddVolumeOptions))
        assert (refusal.value.code, words in refusal.value.message) == (code, True), refusal.value.message


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("", 400, "requires name"),
        ("other", 409, "does not exist"),
        ("root", 409, "not hotpluggable"),
    ],
)
def test_a_volume_that_cannot_be_unplugged_is_refused(name: str, code: int, words: str) -> None:
    for machine in machines():
        with pytest.raises(ApiError) as refusal:
            volumes.check_remove(machine, volumes.RemoveVolumeOptions(name))
        assert (refusal.value.code, words in refusal.value.message) == (code, True), refusal.value.message


def test_what_is_asked_for_is_written_as_kubevirt_writes_it() -> None:
    named = {**ADDED, "volumeSource": {**ADDED["volumeSource"], "name": "ignored", "unknown": 1}}
    options = msgspec.convert(named, volumes.AddVolumeOptions)
    for machine in machines():
        volumes.check_add(machine, options)
        volumes.check_remove(machine, volumes.RemoveVolumeOptions("plugged"))
        volumes.check_remove(machine, volumes.RemoveVolumeOptions("claim"))
    assert options.request() == {
        "addVolumeOptions": {
            "name": "data",
            "disk": {"disk": {"bus": "scsi"}, "serial": "data", "name": "data"},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}},
        }
    }
