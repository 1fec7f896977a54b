"""Devices of a control group of version 2, with the kernel's own programs: an open that is refused and then is not.

No container and no controllers are needed for that: a group of version 2 can be made wherever its file system can be
mounted. Where the kernel refuses programs the test is skipped and counted as such.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtfleet.handler.pods import bpf
from virtfleet.handler.pods.cgroups import ControlGroup
from virtfleet.handler.pods.deviceprogram import Device, allowing
from virtfleet.kube.confined import closing

DENY_ALL = bytes.fromhex("b4000000000000009500000000000000")
NULL, ZERO, FULL = "c 1:3 rwm", "c 1:5 rw", "c 1:7 rw"


@pytest.fixture
def group() -> Iterator[Path]:
    """A group with a program that allows /dev/null and no other device."""
    root = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], capture_output=True, text=True)
    if mounted.returncode:
        root.rmdir()
        pytest.skip(f"version 2 cannot be mounted here: {mounted.stderr.strip()}")
    made = root / f"devices-{os.getpid()}"
    made.mkdir()
    try:
        try:
            attach(made, allowing(Device.parse(NULL), DENY_ALL))
        except OSError as error:
            pytest.skip(f"the kernel takes no device programs from us: {error}")
        yield made
    finally:
        made.rmdir()
        subprocess.run(["umount", str(root)], check=True)
        root.rmdir()


def attach(group: Path, program: bytes) -> None:
    """One more program; all that are attached must allow a device."""
    with bpf._opened(group) as directory, closing(bpf._load(program)) as new:
        bpf._bpf(bpf._ATTACH, struct.pack("=IIIII", directory, new, bpf._DEVICE, bpf._ALLOW_MULTI, 0))


def opens(group: Path, device: str) -> bool:
    """Whether a process of the group may open a device."""
    code = (
        f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); os.open({device!r}, os.O_RDWR)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 or "PermissionError" in ran.stderr, ran.stderr
    return ran.returncode == 0


def control_group(group: Path) -> ControlGroup:
    return ControlGroup(f"0::/{group.name}\n", group.parent)


def test_a_device_is_added_to_what_the_runtime_allows(group: Path) -> None:
    assert (opens(group, "/dev/null"), opens(group, "/dev/zero")) == (True, False)
    control_group(group).allow(ZERO)
    assert (opens(group, "/dev/null"), opens(group, "/dev/zero"), opens(group, "/dev/full")) == (True, True, False)


def test_what_is_allowed_already_stays_as_it_is(group: Path) -> None:
    control_group(group).allow(ZERO)
    before = bpf.device_programs(group)
    control_group(group).allow(ZERO)
    control_group(group).allow("c 1:3 r")
    assert bpf.device_programs(group) == before
    assert len(before) == 1


def test_what_was_added_is_taken_back_and_all_else_stays(group: Path) -> None:
    """As disks of a running VM come and go: what it has open meanwhile stays open."""
    own = control_group(group)
    for line in (ZERO, FULL):
        own.allow(line)
    holding = (
        f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()));"
        " fd = os.open('/dev/zero', os.O_RDWR); print('open', flush=True); input(); print(len(os.read(fd, 4)))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as guest:
        assert guest.stdout and guest.stdout.readline() == "open\n"
        own.deny(ZERO)
        assert guest.communicate("\n", timeout=20)[0] == "4\n"
    assert (opens(group, "/dev/null"), opens(group, "/dev/zero"), opens(group, "/dev/full")) == (True, False, True)
    own.deny(ZERO)  # as a handler does that does not know how far another one came
    own.deny(FULL)
    assert (opens(group, "/dev/null"), opens(group, "/dev/full")) == (True, False)
    assert len(bpf.device_programs(group)) == 1


def test_many_disks_come_and_go_and_the_program_is_as_long_as_before(group: Path) -> None:
    own = control_group(group)
    before = len(bpf.instructions(bpf.device_programs(group)[0]))
    disks = [f"b 7:{minor} rwm" for minor in range(64)]
    for disk in disks:
        own.allow(disk)
    for disk in reversed(disks[::2]):
        own.deny(disk)
    for disk in disks[1::2]:
        own.deny(disk)
    assert len(bpf.instructions(bpf.device_programs(group)[0])) == before


def test_all_programs_of_a_group_have_to_agree(group: Path) -> None:
    attach(group, DENY_ALL)
    assert not opens(group, "/dev/null")
    for line in (NULL, ZERO):
        control_group(group).allow(line)
    assert (opens(group, "/dev/null"), opens(group, "/dev/zero")) == (True, True)


def test_programs_that_are_kept_from_us_hold_up_nothing(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> list[int]:
        raise PermissionError(1, "the kernel refuses")

    monkeypatch.setattr(bpf, "device_programs", refuse)
    control_group(group).allow(ZERO)
    control_group(group).deny(ZERO)
    assert not opens(group, "/dev/zero")


def test_a_group_without_programs_allows_all(group: Path) -> None:
    free = group.with_name(f"{group.name}-free")
    free.mkdir()
    try:
        control_group(free).allow(ZERO)
        assert bpf.device_programs(free) == []
        assert opens(free, "/dev/zero")
    finally:
        free.rmdir()


def test_without_the_controller_of_cpus_threads_are_bound_and_the_group_stays_as_it_was(group: Path) -> None:
    """Only where version 1 has that controller; elsewhere the group of threads is what there should be."""
    with subprocess.Popen(["sleep", "60"]) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        cpu = min(os.sched_getaffinity(process.pid))
        control_group(group).housekeep([process.pid], {cpu})
        bound, kind = os.sched_getaffinity(process.pid), (group / "cgroup.type").read_text().strip()
        process.kill()
    there = "cpuset" in (group / "cgroup.controllers").read_text()
    assert (bound, kind) == ({cpu}, "domain threaded" if there else "domain")
    if there:
        (group / "housekeeping").rmdir()
