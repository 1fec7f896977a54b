"""Starts a container with libvirt's LXC driver; a process of its own, in a mount namespace of its own.

The daemon is root's and uses the system's directories, so it gets empty ones that nobody else sees.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import libvirt

from tests.waiting import eventually
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import DaemonSettings
from virtfleet.hypervisors.containers import first_id
from virtfleet.launcher.storage import mapped

DRIVER = Path("/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_lxc.so")
SYSTEM = [
    Path(p) for p in ("/etc/libvirt", "/run/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")
]


def vmi() -> VirtualMachineInstance:
    line = "init=/bin/busybox -- sh -c 'echo started > /result; exec /bin/busybox sleep 60'"
    return read(
        VirtualMachineInstance,
        {
            "metadata": {"name": "container", "namespace": "test", "uid": "u"},
            "spec": {
                "domain": {
                    "memory": {"guest": "64Mi"},
                    "firmware": {"kernelBoot": {"kernelArgs": line}},
                    "devices": {"filesystems": [{"name": "rootfs", "virtiofs": {}}]},
                },
                "volumes": [{"name": "rootfs", "containerDisk": {"image": "box"}}],
            },
        },
    )


def cgroups() -> set[Path]:
    """Groups that libvirt makes for machines and leaves behind empty."""
    return set(Path("/sys/fs/cgroup").glob("*/machine"))


def main(directory: Path) -> None:
    before = cgroups()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for path in SYSTEM:
        if path.is_dir():
            subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
    # On a hybrid cgroup tree the driver would choose the half that has no controllers.
    subprocess.run(["umount", "/sys/fs/cgroup/unified"], check=False, stderr=subprocess.DEVNULL)
    directory.chmod(0o755)  # root of the guest, who is nobody here, has to come by
    image, root = directory / "image", directory / "root"
    for name in ("bin", "proc", "sys", "dev"):
        (image / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", image / "bin" / "busybox")
    mapped.copy(str(image), str(root), first_id("u"))
    drivers = directory / "drivers"
    drivers.mkdir()
    (drivers / DRIVER.name).symlink_to(DRIVER)
    lxc = registry.get("lxc")
    plan = lxc.daemon(
        DaemonSettings(
            runtime_dir="/run", private_dir=str(directory / "private"), modular=False, driver_dir=str(drivers)
        )
    )
    for path in plan.directories:
        Path(path).mkdir(parents=True, exist_ok=True)
    for path, content in plan.files.items():
        Path(path).write_text(content)
    assert plan.daemon is not None
    daemon = subprocess.Popen(plan.daemon.command, env=os.environ | plan.daemon.environment)
    try:
        connection = eventually(lambda: libvirt.open(plan.uri), deadline=20)
        document = lxc.build(vmi(), Context())
        for source in document.iterfind("devices/filesystem/source"):
            source.set("dir", str(root))
        domain = connection.defineXMLFlags(text(document), libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        domain.create()
        try:
            eventually(lambda: (root / "result").exists() and (root / "result").read_text() == "started\n", deadline=20)
            assert domain.isActive()
        finally:
            domain.destroy()
        assert not domain.isActive()
    finally:
        daemon.terminate()
        daemon.wait(timeout=20)
        for left in cgroups() - before:
            left.rmdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
