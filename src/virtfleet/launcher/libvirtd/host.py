"""The libvirt and firmware that are really here, for fitting domain documents to them."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import libvirt

from virtfleet.domain.context import Host
from virtfleet.hypervisors.base import Descriptor

_FIRMWARE_ROOT = Path("/usr/share")
_PROCESSES = Path("/proc")
_NUMBERS = re.compile(r"^NSpid:\t(\d+)\t1$", re.MULTILINE)
_MACHINE = re.compile(r"<machine\b[^>]*>([^<]+)</machine>")


def inspect(connection: libvirt.virConnect) -> Host:
    """What is here. Machine types are those of the guests that libvirt says it can run."""
    return Host(
        libvirt_version=connection.getLibVersion(),
        firmware=frozenset(
            str(path) for pattern in ("*/*_CODE*.fd", "*/*_VARS*.fd") for path in _FIRMWARE_ROOT.glob(pattern)
        ),
        machines=frozenset(_MACHINE.findall(connection.getCapabilities())),
        vhost_net=os.access("/dev/vhost-net", os.R_OK | os.W_OK),
    )


def process(names: tuple[str, ...], root: Path = _PROCESSES) -> int | None:
    """The hypervisor's process, whose name begins with one of these. The launcher sees those of its own Pod only."""
    for comm in root.glob("[0-9]*/comm") if names else ():
        with suppress(OSError):  # it has ended
            if comm.read_text(errors="replace").startswith(names):
                return int(comm.parent.name)
    return None


def container_ended(of: Descriptor, root: Path = _PROCESSES) -> bool:
    """Whether the guest is a container whose process is no more."""
    return of.container and bool(of.processes) and process(of.processes, root) is None


def end_container(root: Path = _PROCESSES) -> bool:
    """Ask a container's first process to end, as libvirt does; whether there is one.

    A container's processes have numbers of their own beside those that the launcher sees, and it is their number one.
    """
    for status in root.glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            numbers = _NUMBERS.search(status.read_text(errors="replace"))
            if numbers is not None:
                os.kill(int(numbers[1]), signal.SIGTERM)
                return True
    return False
