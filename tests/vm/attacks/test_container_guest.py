"""Root of a guest that is a container tries to reach the node, from its console."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from virtfleet.hypervisors.containers import IDS, first_id
from vm.guests import VM, container, running

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="libvirt's containers need /dev/fuse")

_SYS_MODULE, _SYS_RAWIO, _MKNOD = 16, 17, 27
DISK = os.stat("/").st_dev

# What is there already is written again, so that a guest that gets through does no harm.
_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()
_REWRITE = f"mount -o remount,rw /proc/sys; echo {shlex.quote(_PATTERN)} > /proc/sys/kernel/core_pattern"
_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def _anywhere(file: str, text: str) -> str:
    """Write into a file of whatever control group is in sight."""
    return f"for f in $(find /sys/fs/cgroup -name {file}); do echo {text} > $f && exit; done; false"


# What root of the guest tries, which must fail.
ATTACKS = {
    "rewrite core_pattern": _REWRITE,
    "do so in namespaces of its own": f"unshare -Urm sh -c {shlex.quote(_REWRITE)}",
    "mount control groups": "mkdir -p /cg && mount -t cgroup -o memory none /cg",
    "mount the new kind": "mkdir -p /cg2 && mount -t cgroup2 none /cg2 && echo 1 > /cg2/cgroup.procs",
    "be called when a group ends": _anywhere("release_agent", ""),
    "let itself have devices": _anywhere("devices.allow", "a"),
    "lift its own limit": _anywhere("memory.limit_in_bytes", "-1"),
    "make the node's disk": f"mknod /disk b {os.major(DISK)} {os.minor(DISK)} && head -c 1 /disk",
    "have the node's devices": "mount -t devtmpfs none /mnt",
    "read the kernel's memory": "head -c 1 /proc/kcore",
    "load a module": "insmod /bin/busybox",
    "call the kernel": "echo h > /proc/sysrq-trigger",
    "debug the kernel": "mount -t debugfs none /mnt",
    "tune the node": f"mount -o remount,rw /sys; grep -o '[a-z]*]' {_PAGES} | tr -d ']' > {_PAGES}",
    "write to the launcher": "mount -o remount,rw,bind /mnt/lent; touch /mnt/lent/x",
}


async def tries(vm: VM, command: str) -> tuple[int, str]:
    """What a command in the guest says, and how it ends."""
    await vm.type(f"({command}) 2>&1; echo ==$?==")
    before = vm._read
    told = await vm.says(r"==(\d+)==")
    return int(told[1]), vm.output[before : told.start()]


@pytest.fixture
async def vm() -> AsyncIterator[VM]:
    """A container that is even lent a directory of its launcher's."""
    vmi = container()
    vmi["spec"]["domain"]["devices"]["filesystems"].append({"name": "lent", "virtiofs": {}})
    vmi["spec"]["volumes"].append({"name": "lent", "containerPath": {"path": "/etc/libvirt", "readOnly": False}})
    async with running(vmi, "lxc") as vm:
        await vm.says(r"virtfleet-guest ready")
        yield vm


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the node."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_root_of_a_container_cannot_reach_the_node(vm: VM, victim: subprocess.Popen[bytes]) -> None:
    attacks = ATTACKS | {"kill a process of the node": f"kill -9 {victim.pid}"}
    done = {what: await tries(vm, command) for what, command in attacks.items()}
    assert {what: said for what, (status, said) in done.items() if status == 0} == {}
    assert victim.poll() is None


async def test_root_of_a_container_is_nobody(vm: VM) -> None:
    _, told = await tries(vm, "cat /proc/1/uid_map /proc/1/gid_map; grep CapBnd /proc/1/status")
    first = first_id(vm.standalone.vmi["metadata"]["uid"])
    assert re.findall(r"^\s*0\s+(\d+)\s+(\d+)\s*$", told, re.MULTILINE) == [(str(first), str(IDS))] * 2
    bounding = int(told.partition("CapBnd:")[2].split()[0], 16)
    assert not any(bounding >> capability & 1 for capability in (_SYS_MODULE, _SYS_RAWIO, _MKNOD))
