"""Threads that do the I/O of disks: how many, and which disk uses which."""

from __future__ import annotations

import msgspec

from virtfleet.api import traits
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI

_THREADS_PER_CPU = 2


class IOThreads(msgspec.Struct, frozen=True):
    """Threads are numbered from 1: first those that disks share, then those of a disk alone."""

    total: int = 0
    shared: int = 0
    pool: int = 0
    """Threads that every disk uses together, instead of the others."""


def threads(vmi: VMI) -> IOThreads:
    """The I/O threads of a VM."""
    domain = vmi.spec.domain
    dedicated = sum(1 for disk in domain.devices.disks if disk.dedicated_io_thread)
    if not domain.io_threads_policy and not dedicated:
        return IOThreads()
    if domain.io_threads_policy == "supplementalPool":
        count = traits.pool_threads(vmi) or 1
        return IOThreads(total=count, pool=count)
    shared = len(domain.devices.disks) - dedicated
    limit = _limit(vmi)
    if shared + dedicated > limit:
        shared = max(limit - dedicated, 1)
    return IOThreads(total=shared + dedicated, shared=shared)


def _limit(vmi: VMI) -> int:
    if vmi.spec.domain.io_threads_policy != "auto":
        return 1
    cpu, resources = vmi.spec.domain.cpu, vmi.spec.domain.resources
    if traits.dedicated_cpus(vmi) and cpu and cpu.isolate_emulator_thread:
        return 1  # it shares the emulator's physical CPU
    amount = resources.requests.get("cpu", resources.limits.get("cpu", 1))
    return Quantity.parse(amount).value() * _THREADS_PER_CPU
