"""The libvirt daemons of one VM, under watch: one that dies is started again.

The hypervisor's processes are not their children in any sense that matters: a daemon that comes back finds them from
its state files and goes on with them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

from virtfleet.domain import paths
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Hypervisor, Process
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd import cgroups, logs
from virtfleet.launcher.storage import mapped
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_DRIVER_DIRS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/s390x-linux-gnu", "/usr/lib64")
_DRIVERS = f"{paths.PRIVATE}/libvirt-drivers"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_STEADY = 30.0  # seconds after which a daemon counts as healthy again
_LAST_WORDS = 5.0
# Threads that seldom work need no memory pool each (5 MiB less), and what is free goes back to the node at once (4 MiB
# less), where the image has a libvirtd that can: `scripts/images`.
_FRUGAL = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_CONF": "narenas:1,tcache:false,dirty_decay_ms:0,muzzy_decay_ms:0",
}


def plan_for(hypervisor: Hypervisor, *, log_filters: str = "") -> DaemonPlan:
    """How to run libvirt with what is installed here: the modular daemon, else libvirtd with one driver."""
    if missing := lacking(hypervisor):
        raise Failure(missing)
    driver, driver_dir = monolithic_driver(hypervisor), ""
    if driver and not modular(hypervisor):
        driver_dir = _DRIVERS
        Path(_DRIVERS).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            Path(_DRIVERS, driver.name).symlink_to(driver)  # each further one would cost memory
    if hypervisor.descriptor.container:
        cgroups.enclose()
        mapped.uncover()
    return hypervisor.daemon(
        DaemonSettings(
            modular=modular(hypervisor),
            driver_dir=driver_dir,
            log_filters=log_filters,
            host_uuid=Path("/proc/sys/kernel/random/uuid").read_text().strip(),
        )
    )


def lacking(hypervisor: Hypervisor) -> str:
    """What of libvirt is not installed here that the hypervisor needs, as a sentence, or ""."""
    if hypervisor.descriptor.connection is not Connection.DAEMON:
        return ""  # the library has it, or another machine
    if modular(hypervisor) or (monolithic_driver(hypervisor) and Path("/usr/sbin/libvirtd").exists()):
        return ""
    daemon = hypervisor.descriptor.daemon
    return f"neither {daemon} nor libvirtd with a driver for {hypervisor.descriptor.scheme} is installed"


def modular(hypervisor: Hypervisor) -> bool:
    return bool(hypervisor.descriptor.daemon) and Path("/usr/sbin", hypervisor.descriptor.daemon).exists()


def monolithic_driver(hypervisor: Hypervisor) -> Path | None:
    name = f"libvirt_driver_{hypervisor.descriptor.driver or hypervisor.descriptor.scheme}.so"
    places = (Path(directory, "libvirt/connection-driver", name) for directory in _DRIVER_DIRS)
    return next((path for path in places if path.exists()), None)


class Daemons:
    """The daemons of a plan."""

    def __init__(self, plan: DaemonPlan) -> None:
        self._plan = plan
        self._watching = tasks.Owned()

    def lay_out(self) -> None:
        """Write their files."""
        for directory in self._plan.directories:
            os.makedirs(directory, exist_ok=True)
        for path, text in self._plan.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
            if text.startswith("#!"):
                os.chmod(path, 0o755)
        for path, place in self._plan.links.items():
            with suppress(FileExistsError):
                os.symlink(place, path)
        for path, kind in self._plan.mounts.items():
            if not os.path.ismount(path):
                subprocess.run(["mount", "-t", kind, kind, path], check=True, timeout=_LAST_WORDS)

    def start(self) -> None:
        """Keep them running from now on."""
        for process in (self._plan.log_daemon, self._plan.daemon):
            if process:
                self._watching.add(tasks.keep(partial(_keep_running, process), f"daemon: {process.command[0]}"))
        if self._plan.logs:
            self._watching.add(tasks.keep(partial(logs.keep_short, self._plan.logs), "logs"))

    def last_words(self) -> str:
        """What the hypervisor wrote last, where it writes a log."""
        return logs.last_words(self._plan.logs[0]) if self._plan.logs else ""

    async def stop(self) -> None:
        await self._watching.end()


async def _keep_running(process: Process) -> None:
    name = os.path.basename(process.command[0])
    pause = _FIRST_PAUSE
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        async with logs.passed_on() as stderr:
            running = await asyncio.create_subprocess_exec(
                *process.command,
                env=os.environ | _FRUGAL | process.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=stderr,
            )
            try:
                code = await running.wait()
            except asyncio.CancelledError:
                await _end(running)
                raise
        pause = _FIRST_PAUSE if clock() - began > _STEADY else min(2 * pause, _LONGEST_PAUSE)
        logger.warning("%s ended with status %d; it is started again", name, code)
        await asyncio.sleep(pause)


async def _end(running: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        running.terminate()
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await running.wait()
        except TimeoutError:
            running.kill()
            await running.wait()
