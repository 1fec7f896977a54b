"""What a QEMU process needs that it may not do itself."""

from __future__ import annotations

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.hypervisors.base import Tuning


def tuning(vmi: VMI, context: Context, *, kernel_threads: tuple[str, ...] = ()) -> Tuning:
    """Locked memory for devices that write into it, real-time CPUs, and CPUs for the emulator alone."""
    cpu, memory = vmi.spec.domain.cpu, vmi.spec.domain.memory
    reserved = memory.reserved_overhead if memory else None
    return Tuning(
        lock_memory=context.direct_memory_access
        or traits.realtime(vmi)
        or traits.sev(vmi)
        or (reserved is not None and reserved.mem_lock == "Required"),
        realtime_vcpus=cpu.realtime.mask if cpu and cpu.realtime else None,
        isolate_emulator=bool(cpu and cpu.dedicated_cpu_placement and cpu.isolate_emulator_thread),
        kernel_threads=kernel_threads if traits.dedicated_cpus(vmi) else (),
    )
