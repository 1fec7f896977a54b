"""What this machine is: the facts that containers and the Node object are made from."""

from __future__ import annotations

import os
import platform
import stat
from contextlib import suppress
from pathlib import Path

from virtfleet.local.node.bundle import Device, HostFacts
from virtfleet.local.node.cgroups import ROOT
from virtfleet.local.node.security import ConfigError, bounding_set

# Not devices but mounts and links, which every container has of its own.
_NOT_NODES = {"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console", "/dev/fd"}


def inspect(*, with_devices: bool) -> HostFacts:
    """Only privileged containers get all devices, and there are many to look at."""
    capabilities = bounding_set(Path("/proc/self/status").read_text())
    own_score = int(Path("/proc/self/oom_score_adj").read_text())
    return HostFacts(
        architecture=platform.machine(),
        capabilities=capabilities,
        memory=memory(),
        oom_score=-1000 if "CAP_SYS_RESOURCE" in capabilities else own_score,
        devices=_devices() if with_devices else (),
        unified=(ROOT / "cgroup.controllers").exists(),
    )


def memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_node(path: str, target: str, access: str = "rwm") -> Device:
    """A device node of this machine as a container gets it at `target`."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise ConfigError(f"device {path}: {error.strerror}") from None
    if not (stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode)):
        raise ConfigError(f"{path} is not a device node")
    kind, major, minor = "b" if stat.S_ISBLK(info.st_mode) else "c", os.major(info.st_rdev), os.minor(info.st_rdev)
    return Device(target, kind, major, minor, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, access)


def _devices() -> list[Device]:
    devices = []
    for directory, names, files in os.walk("/dev"):
        names[:] = [name for name in names if os.path.join(directory, name) not in _NOT_NODES]
        paths = sorted({os.path.join(directory, name) for name in files} - _NOT_NODES)
        for path in paths:
            if not os.path.islink(path):
                with suppress(ConfigError):  # a socket, say
                    devices.append(device_node(path, path))
    return devices
