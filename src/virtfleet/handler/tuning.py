"""What is done to the hypervisor's process that it may not do itself: locked memory, real-time CPUs, own CPUs."""

from __future__ import annotations

import logging
import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from virtfleet.handler.cgroups import ControlGroup
from virtfleet.hypervisors.base import Descriptor, Tuning

logger = logging.getLogger(__name__)

_REALTIME_PRIORITY = 1
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def before_start(group: ControlGroup, tuning: Tuning) -> None:
    """Raise the limit on locked memory of what will start the hypervisor, which inherits it."""
    if not tuning.lock_memory:
        return
    for process in group.processes():
        if resource.prlimit(process, resource.RLIMIT_MEMLOCK) == _UNLIMITED:
            continue
        try:
            resource.prlimit(process, resource.RLIMIT_MEMLOCK, _UNLIMITED)
        except PermissionError:
            raise PermissionError(
                "the VM needs all of its memory locked (for a device of the node, real-time CPUs or encryption), and "
                "virt-handler may not raise the limit for it: give its container the capability SYS_RESOURCE, or let "
                "the node's container runtime start with an unlimited RLIMIT_MEMLOCK"
            ) from None


def after_start(group: ControlGroup, descriptor: Descriptor, tuning: Tuning) -> None:
    """Give the guest's CPUs their priority, and keep everything else off the physical CPUs that they are on."""
    if tuning.realtime_vcpus is None and not tuning.isolate_emulator:
        return
    processes = group.processes()
    vcpus = {
        number: thread
        for process in processes
        if _name(process).startswith(descriptor.processes)
        for number, thread in _vcpu_threads(process, descriptor.vcpu_thread).items()
    }
    if tuning.realtime_vcpus is not None:
        for number in selected(tuning.realtime_vcpus, vcpus):
            os.sched_setscheduler(vcpus[number], os.SCHED_FIFO, os.sched_param(_REALTIME_PRIORITY))
    if tuning.isolate_emulator and vcpus:
        guests = set().union(*(os.sched_getaffinity(thread) for thread in vcpus.values()))
        free = os.sched_getaffinity(processes[0]) - guests
        others = [t for process in processes for t in _threads(process) if t not in vcpus.values()]
        if free:
            group.housekeep(others, free)


def selected(mask: str, numbers: Iterable[int]) -> list[int]:
    """The CPUs of a mask such as "0-3,^1"; all of them where it is empty."""
    every = sorted(numbers)
    if not mask:
        return every
    chosen: set[int] = set()
    for part in mask.split(","):
        first, _, last = part.strip().removeprefix("^").partition("-")
        span = set(range(int(first), int(last or first) + 1))
        chosen = chosen - span if part.strip().startswith("^") else chosen | span
    return [number for number in every if number in chosen]


def _vcpu_threads(process: int, pattern: str) -> dict[int, int]:
    found = {}
    for thread in _threads(process):
        if match := re.search(pattern, _name(process, thread)):
            found[int(match[1])] = thread
    return found


def _threads(process: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except FileNotFoundError:
        return []


def _name(process: int, thread: int | None = None) -> str:
    try:
        return Path(f"/proc/{process}/task/{thread or process}/comm").read_text().strip()
    except OSError:
        return ""
