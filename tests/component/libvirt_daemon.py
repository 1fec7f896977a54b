"""A libvirt daemon of its own for a test: started as a launcher would start it, in a directory that goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libvirt
import pytest

from tests.waiting import eventually
from virtfleet.hypervisors.base import DaemonSettings, Hypervisor

DRIVERS = Path("/usr/lib/x86_64-linux-gnu/libvirt/connection-driver")
USER, GROUP = "nobody", "nogroup"


@contextmanager
def running(
    hypervisor: Hypervisor, driver: str, directory: Path, *, host_uuid: str = ""
) -> Iterator[libvirt.virConnect]:
    """A connection to the hypervisor's daemon, which has one driver and ends with the context."""
    name = hypervisor.descriptor.daemon
    modular = Path(f"/usr/sbin/{name}").exists()
    if not modular and not Path("/usr/sbin/libvirtd").exists():
        pytest.skip("libvirt is not installed")
    if os.getuid() != 0:
        pytest.skip("starting a daemon as another user needs root")
    drivers = directory / "drivers"
    drivers.mkdir()
    (drivers / f"libvirt_driver_{driver}.so").symlink_to(DRIVERS / f"libvirt_driver_{driver}.so")
    plan = hypervisor.daemon(
        DaemonSettings(
            runtime_dir=str(directory / "run"),
            private_dir=str(directory / "private"),
            modular=modular,
            driver_dir=str(drivers),
            host_uuid=host_uuid,
        )
    )
    for path in plan.directories:
        Path(path).mkdir(parents=True, exist_ok=True)
    for path, text in plan.files.items():
        Path(path).write_text(text)
    for path in (directory / "run", directory / "private"):
        subprocess.run(["chown", "-R", f"{USER}:{GROUP}", path], check=True)
    processes = []
    log = directory / "log"
    try:
        for process in filter(None, (plan.log_daemon, plan.daemon)):
            environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(directory / "private")}
            with log.open("ab") as output:
                processes.append(
                    subprocess.Popen(
                        process.command,
                        env=environment | process.environment,
                        user=USER,
                        group=GROUP,
                        extra_groups=[],
                        cwd="/",
                        stdout=output,
                        stderr=output,
                    )
                )
        yield eventually(lambda: libvirt.open(plan.uri), deadline=20)
    finally:
        for started in processes:
            started.terminate()
        for started in processes:
            started.wait(timeout=20)
        shutil.rmtree(directory, ignore_errors=True)
