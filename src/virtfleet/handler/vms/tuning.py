"""What is done to the hypervisor's process that it may not do itself: locked memory, real-time CPUs, own CPUs.

And which physical CPUs and NUMA nodes this machine has for that.
"""

from __future__ import annotations

import logging
import os
import re
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from virtfleet.domain.context import NumaCell
from virtfleet.handler.pods.process import PodProcess
from virtfleet.hypervisors.base import Descriptor, Tuning

logger = logging.getLogger(__name__)

SYSFS = Path("/sys/devices/system")
_REALTIME_PRIORITY = 1
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def before_start(launcher: PodProcess, tuning: Tuning) -> None:
    """Raise the limit on locked memory of what will start the hypervisor, which inherits it."""
    if not tuning.lock_memory:
        return
    for process in launcher.companions():
        if resource.prlimit(process.number, resource.RLIMIT_MEMLOCK) == _UNLIMITED:
            continue
        try:
            resource.prlimit(process.number, resource.RLIMIT_MEMLOCK, _UNLIMITED)
        except PermissionError:
            raise PermissionError(
                "the VM needs all of its memory locked (for a device of the node, real-time CPUs or encryption), and "
                "virt-handler may not raise the limit for it: give its container the capability SYS_RESOURCE, or let "
                "the node's container runtime start with an unlimited RLIMIT_MEMLOCK"
            ) from None


def after_start(launcher: PodProcess, descriptor: Descriptor, tuning: Tuning) -> None:
    """Give the guest's CPUs their priority, and keep everything else off the physical CPUs that they are on."""
    if tuning.realtime_vcpus is None and not tuning.isolate_emulator:
        return
    processes = list(launcher.companions())
    vcpus = {
        int(match[1]): (process, thread)
        for process in processes
        if process.read("comm").decode(errors="replace").startswith(descriptor.processes)
        for thread, name in process.threads().items()
        if (match := re.search(descriptor.vcpu_thread, name))
    }
    if tuning.realtime_vcpus is not None:
        for number in selected(tuning.realtime_vcpus, vcpus):
            process, thread = vcpus[number]
            os.sched_setscheduler(process.thread(thread), os.SCHED_FIFO, os.sched_param(_REALTIME_PRIORITY))
    if tuning.isolate_emulator and vcpus:
        busy = {process.thread(thread) for process, thread in vcpus.values()}
        guests = set().union(*(os.sched_getaffinity(thread) for thread in busy))
        free = os.sched_getaffinity(launcher.number) - guests
        others = [thread for process in processes for thread in process.threads() if thread not in busy]
        if free:
            launcher.group().housekeep(others, free)


def selected(mask: str, numbers: Iterable[int]) -> list[int]:
    """The CPUs of a mask such as "0-3,^1"; all of them where it is empty."""
    chosen = set() if mask else {*numbers}
    for part in map(str.strip, mask.split(",")):
        span = {*ranges(part.removeprefix("^"))}
        chosen = chosen - span if part.startswith("^") else chosen | span
    return sorted(chosen.intersection(numbers))


def cells(sysfs: Path = SYSFS) -> tuple[NumaCell, ...]:
    """The machine's NUMA nodes, with the threads of each CPU's core and the distances to other nodes."""
    nodes = []
    for node in sorted((sysfs / "node").glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        cpus = tuple((cpu, _siblings(sysfs, cpu)) for cpu in ranges((node / "cpulist").read_text()))
        distances = tuple(enumerate(int(d) for d in (node / "distance").read_text().split()))
        nodes.append(NumaCell(int(node.name.removeprefix("node")), cpus, distances))
    return tuple(nodes)


def _siblings(sysfs: Path, cpu: int) -> tuple[int, ...]:
    with suppress(OSError):
        return ranges((sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
    return (cpu,)


def ranges(text: str) -> tuple[int, ...]:
    """The kernel's lists, such as 0-3,8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
