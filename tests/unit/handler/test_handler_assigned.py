"""Small decisions about what a launcher has: devices, CPUs, control groups."""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import AssignedDevice
from virtfleet.handler.devices.assigned import assigned, environment
from virtfleet.handler.pods.cgroups import ControlGroup
from virtfleet.handler.vms import tuning
from virtfleet.hypervisors.base import Tuning


def vmi(gpus: list[str], host_devices: list[str]) -> VMI:
    devices = {
        "gpus": [{"name": f"gpu{n}", "deviceName": name} for n, name in enumerate(gpus)],
        "hostDevices": [{"name": f"dev{n}", "deviceName": name} for n, name in enumerate(host_devices)],
    }
    return read(VMI, {"spec": {"domain": {"devices": devices}}})


def test_addresses_are_handed_out_in_turn() -> None:
    told = {
        "PCI_RESOURCE_NVIDIA_COM_T4": "0000:65:00.0,0000:66:00.0",
        "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID": "uuid-1",
        "USB_RESOURCE_KUBEVIRT_IO_STICK": "1:4",
        "PRETEND_RESOURCE_SUPERDUPER_IO_MEGASLOP_9000": "megaslop-1",
    }
    wanted = vmi(
        ["nvidia.com/T4", "nvidia.com/GRID", "nvidia.com/T4"], ["kubevirt.io/stick", "superduper.io/MegaSlop_9000"]
    )
    gpus, host_devices = assigned(wanted, told)
    assert gpus == {
        "gpu0": AssignedDevice("pci", "0000:65:00.0"),
        "gpu1": AssignedDevice("mdev", "uuid-1"),
        "gpu2": AssignedDevice("pci", "0000:66:00.0"),
    }
    assert host_devices == {"dev0": AssignedDevice("usb", "1:4"), "dev1": AssignedDevice("emulated", "megaslop-1")}


def test_a_device_that_was_not_given_is_missing() -> None:
    gpus, _ = assigned(vmi(["nvidia.com/T4", "nvidia.com/T4"], []), {"PCI_RESOURCE_NVIDIA_COM_T4": "0000:65:00.0"})
    assert gpus.keys() == {"gpu0"}


def test_the_environment_of_a_process_is_read() -> None:
    assert environment(b"A=1\0B=x=y\0\0") == {"A": "1", "B": "x=y"}


@pytest.mark.parametrize(
    ("mask", "expected"), [("", [0, 1, 2, 3]), ("0-1", [0, 1]), ("0-3,^1", [0, 2, 3]), ("2,7", [2])]
)
def test_masks_choose_virtual_cpus(mask: str, expected: list[int]) -> None:
    assert tuning.selected(mask, range(4)) == expected


def test_a_limit_that_may_not_be_raised_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = SimpleNamespace(companions=lambda: [SimpleNamespace(number=12)])
    asked: list[int] = []

    def prlimit(process: int, limit: int, values: tuple[int, int] | None = None) -> tuple[int, int]:
        asked.append(process)
        if values:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return 1, 1

    monkeypatch.setattr(resource, "prlimit", prlimit)
    tuning.before_start(found, Tuning())
    assert not asked, "VMs that need no locked memory do not depend on it"
    with pytest.raises(PermissionError, match="capability SYS_RESOURCE"):
        tuning.before_start(found, Tuning(lock_memory=True))


def test_numa_nodes_are_read_with_siblings_and_distances(tmp_path: Path) -> None:
    for number, cpus in enumerate(("0,2", "1,3")):
        node = tmp_path / f"node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
        (node / "distance").write_text("10 21\n" if number == 0 else "21 10\n")
    siblings = tmp_path / "cpu/cpu0/topology"
    siblings.mkdir(parents=True)
    (siblings / "thread_siblings_list").write_text("0,2\n")
    first, second = tuning.cells(tmp_path)
    assert first.cpus == ((0, (0, 2)), (2, (2,)))
    assert second.distances == ((0, 21), (1, 10))


def group(tmp_path: Path, content: str) -> ControlGroup:
    return ControlGroup(content, tmp_path / "cgroup")


def test_version_1_and_mixtures_of_both_have_a_directory_per_controller(tmp_path: Path) -> None:
    found = group(tmp_path, "5:devices:/pods/a\n3:cpu,cpuacct:/pods/a\n0::/unified/a\n")
    assert found.directory("devices") == tmp_path / "cgroup/devices/pods/a"
    assert found.directory("cpuset") is None
    (tmp_path / "cgroup/devices/pods/a").mkdir(parents=True)
    found.allow("c 10:232 rwm")
    assert (tmp_path / "cgroup/devices/pods/a/devices.allow").read_text() == "c 10:232 rwm"


def test_on_version_2_a_group_without_programs_is_left_alone(tmp_path: Path) -> None:
    found = group(tmp_path, "0::/pods/a\n")
    found.allow("c 10:232 rwm")
    assert found.directory("devices") is None
    (tmp_path / "cgroup/pods/a").mkdir(parents=True)
    (tmp_path / "cgroup/pods/a/cgroup.procs").write_text("12\n13\n")
    assert found.processes() == [12, 13]
