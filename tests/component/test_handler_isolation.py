"""What the handler does to a launcher's devices and threads, on this machine's own kernel."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from virtfleet.handler.devices.access import grant
from virtfleet.handler.pods.cgroups import ROOT
from virtfleet.handler.pods.process import PodProcess
from virtfleet.handler.vms import tuning
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Tuning

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

POD = f"vfh-{os.getpid()}"

# A process that looks like QEMU: two virtual CPUs, and a thread beside them.
QEMU = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
def called(name, cpu=None):
    libc.prctl(15, name.encode(), 0, 0, 0)
    if cpu is not None: os.sched_setaffinity(0, {cpu})
    ready.wait(); threading.Event().wait()
ready = threading.Barrier(4)
for name, cpu in (("CPU 0/KVM", 0), ("CPU 1/KVM", 0), ("worker", None)):
    threading.Thread(target=called, args=(name, cpu), daemon=True).start()
libc.prctl(15, b"qemu-system-x86", 0, 0, 0)
ready.wait()
print("up", flush=True); sys.stdin.read()
"""


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Control groups of this test alone, removed again with what the handler makes below them."""
    made = [ROOT / controller / POD for controller in ("cpuset", "devices")]
    if not all(path.parent.is_dir() for path in made):
        pytest.skip("this machine has no control groups of version 1")
    for path in made:
        path.mkdir()
    (made[0] / "cpuset.cpus").write_text((ROOT / "cpuset/cpuset.cpus").read_text())
    (made[0] / "cpuset.mems").write_text((ROOT / "cpuset/cpuset.mems").read_text())
    yield made
    for path in made:
        for group in (*path.glob("*/"), path):
            eventually(lambda group=group: not (group / "cgroup.procs").read_text())
            group.rmdir()


@pytest.fixture
def qemu(groups: list[Path]) -> Iterator[int]:
    def join() -> None:
        for path in groups:
            (path / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-c", QEMU]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=join
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process.pid
        process.kill()


def threads(process: int) -> dict[str, int]:
    tasks = Path(f"/proc/{process}/task")
    return {(task / "comm").read_text().strip(): int(task.name) for task in tasks.iterdir()}


def test_the_guests_cpus_get_priority(qemu: int) -> None:
    descriptor = registry.get("qemu-kvm").descriptor
    try:
        tuning.after_start(PodProcess(qemu, POD), descriptor, Tuning(realtime_vcpus="0"))
    except PermissionError:
        pytest.skip("this machine grants no real-time priorities")
    found = threads(qemu)
    assert os.sched_getscheduler(found["CPU 0/KVM"]) == os.SCHED_FIFO
    assert os.sched_getscheduler(found["CPU 1/KVM"]) == os.SCHED_OTHER


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_other_threads_leave_the_guests_cpus(qemu: int) -> None:
    tuning.after_start(PodProcess(qemu, POD), registry.get("qemu-kvm").descriptor, Tuning(isolate_emulator=True))
    found = threads(qemu)
    assert 0 not in os.sched_getaffinity(found["worker"])
    assert os.sched_getaffinity(found["CPU 0/KVM"]) == {0}


def test_nothing_is_done_to_a_process_that_needs_nothing(qemu: int, groups: list[Path]) -> None:
    tuning.after_start(PodProcess(qemu, POD), registry.get("qemu-kvm").descriptor, Tuning())
    assert not list(groups[0].glob("*/"))


@pytest.fixture
def launcher(tmp_path: Path, groups: list[Path]) -> Iterator[int]:
    """A process with a root directory of its own, in which there are devices."""
    dev = tmp_path / "dev"
    for name in ("net", "vfio"):
        (dev / name).mkdir(parents=True)
    for name, kind in (("net/tun", stat.S_IFCHR), ("vfio/7", stat.S_IFCHR), ("root", stat.S_IFBLK), ("full", 0)):
        os.mknod(dev / name, kind | 0o600, os.makedev(1, 7) if kind else 0)
    (dev / "vhost-net").symlink_to("/dev/null")

    def enter() -> None:
        (groups[1] / "cgroup.procs").write_text(str(os.getpid()))

    # The kernel shows the root directory that a process has changed to.
    script = f"import os, sys; os.chroot({str(tmp_path)!r}); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=enter
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process.pid
        process.kill()


def test_devices_in_the_pod_belong_to_the_launchers_user(launcher: int, tmp_path: Path) -> None:
    before = os.stat("/dev/null")
    granted = grant(PodProcess(launcher, POD), ["root", "absent", "full"])
    assert granted == ["net/tun", "vfio/7", "root"]
    assert {os.stat(tmp_path / "dev" / node).st_uid for node in granted} == {107}
    assert os.stat(tmp_path / "dev/full").st_uid == 0, "no device"
    assert os.stat("/dev/null").st_uid == before.st_uid, "a link leads out of the Pod and is not followed"
