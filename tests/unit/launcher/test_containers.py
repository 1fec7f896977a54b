"""A container's processes, where libvirt has missed what became of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from virtfleet.hypervisors.lxc import Lxc
from virtfleet.hypervisors.openvz import OpenVZ
from virtfleet.hypervisors.qemu.hypervisor import QemuKvm
from virtfleet.launcher.libvirtd import host


def processes(root: Path, **numbers: str) -> Path:
    """A directory like /proc, of processes by name with the numbers that each has, the outermost first."""
    for name, each in numbers.items():
        directory = root / each.split()[0]
        directory.mkdir()
        (directory / "comm").write_text(f"{name}\n")
        (directory / "status").write_text(f"Name:\t{name}\nNSpid:\t{each.replace(' ', chr(9))}\nNSpgid:\t1\n")
    return root


def test_a_container_has_ended_when_its_process_is_no_more(tmp_path: Path) -> None:
    assert host.container_ended(Lxc.descriptor, processes(tmp_path, libvirtd="1"))
    assert not host.container_ended(Lxc.descriptor, processes(tmp_path, libvirt_lxc="58"))


def test_of_other_guests_libvirt_knows_best(tmp_path: Path) -> None:
    assert not host.container_ended(QemuKvm.descriptor, tmp_path)
    assert OpenVZ.descriptor.container and not host.container_ended(OpenVZ.descriptor, tmp_path)


def test_only_a_containers_own_first_process_is_asked_to_end(tmp_path: Path) -> None:
    """Neither the Pod's first process, nor that of a container which the guest has made."""
    assert not host.end_container(processes(tmp_path, catatonit="1", httpd="60 7", nested="61 8 1"))
    with subprocess.Popen(["sleep", "1000"]) as init:
        assert host.end_container(processes(tmp_path, init=f"{init.pid} 1"))
        assert init.wait(timeout=20) == -15
