"""What a VMI's spec amounts to: its CPU topology, its memory, and what kind of VM it is.

One place for rules on which admission, the Pod's resources, the domain and the handler depend.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from virtfleet.api import names
from virtfleet.api.disks import Disk
from virtfleet.api.domainspec import CPU
from virtfleet.api.networks import Interface
from virtfleet.api.probes import INSIDE
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.api.view import given
from virtfleet.api.vmi import AccessCredential
from virtfleet.api.vmi import VirtualMachineInstance as VMI

GRACE = 30  # seconds that a guest has to shut down, where its owner does not say


class Topology(NamedTuple):
    """Sockets, cores per socket, threads per core."""

    sockets: int
    cores: int
    threads: int

    @property
    def vcpus(self) -> int:
        return self.sockets * self.cores * self.threads


def stated_vcpus(cpu: CPU, sockets: int | None) -> int:
    """How many virtual CPUs a topology with this many sockets has; 0 where it says nothing."""
    counts = (cpu.cores, sockets, cpu.threads)
    return prod(count or 1 for count in counts) if any(counts) else 0


def topology(vmi: VMI) -> Topology:
    """The CPU topology at boot. Without one in the spec, the Pod's CPU limit or request becomes sockets.

    Sockets perform best for guests that know nothing of their topology.
    """
    cpu, resources = vmi.spec.domain.cpu, vmi.spec.domain.resources
    if cpu and stated_vcpus(cpu, cpu.sockets):
        return Topology(cpu.sockets or 1, cpu.cores or 1, cpu.threads or 1)
    amount = resources.limits.get("cpu", resources.requests.get("cpu", 1))
    return Topology(max(0, Quantity.parse(amount).value()), 1, 1)


def pool_threads(vmi: VMI) -> int:
    """Threads in the supplemental pool for disk I/O."""
    io_threads = vmi.spec.domain.io_threads
    return (io_threads.supplemental_pool_thread_count if io_threads else None) or 0


def emulator_cpus(vmi: VMI) -> int:
    """Physical CPUs for the emulator alone; two where one would leave half a core over and that is not wanted."""
    cpu = vmi.spec.domain.cpu
    if not (cpu and cpu.isolate_emulator_thread):
        return 0
    even = (topology(vmi).vcpus + pool_threads(vmi)) % 2 == 0
    return 2 if even and names.EMULATOR_THREAD_EVEN_PARITY in vmi.metadata.annotations else 1


def probes_inside(vmi: VMI) -> int:
    """How many of the VM's probes happen inside the guest."""
    return sum(bool(given(p, INSIDE)) for p in (vmi.spec.liveness_probe, vmi.spec.readiness_probe) if p)


def ended_when_silent(vmi: VMI) -> bool:
    """Whether a guest that does not answer the network for a while is ended, also where it stands still on its way."""
    probe = vmi.spec.liveness_probe
    return probe is not None and not given(probe, INSIDE)


def grace(vmi: VMI) -> int:
    seconds = vmi.spec.termination_grace_period_seconds
    return GRACE if seconds is None else seconds


def guest_memory(vmi: VMI) -> Quantity | None:
    """The guest's memory at boot: as said, else as requested, else as limited, else one huge page."""
    memory, resources = vmi.spec.domain.memory, vmi.spec.domain.resources
    if memory and memory.guest is not None:
        return Quantity.parse(memory.guest)
    for amounts in (resources.requests, resources.limits):
        if amount := Quantity.parse(amounts.get("memory", 0)):
            return amount
    try:
        return Quantity.parse(memory.hugepages.page_size) if memory and memory.hugepages else None
    except QuantityError:
        return None  # admission names the field


def memory(vmi: VMI) -> Quantity:
    """The guest's memory at boot; none at all where nothing says how much."""
    return guest_memory(vmi) or Quantity.of(0)


def whole_bytes(amount: Quantity) -> int:
    """Bytes without their fraction: a guest gets no part of a byte that was not asked for."""
    return amount.nano // 10**9


def dedicated_cpus(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.dedicated_cpu_placement)


def realtime(vmi: VMI) -> bool:
    cpu = vmi.spec.domain.cpu
    return bool(cpu and cpu.realtime)


def hugepages(vmi: VMI) -> bool:
    return bool(vmi.spec.domain.memory and vmi.spec.domain.memory.hugepages)


def high_performance(vmi: VMI) -> bool:
    """Whether the VM has physical resources of its own."""
    return dedicated_cpus(vmi) or realtime(vmi) or hugepages(vmi)


def efi(vmi: VMI) -> bool:
    firmware = vmi.spec.domain.firmware
    return bool(firmware and firmware.bootloader and firmware.bootloader.efi)


def persistent_efi(vmi: VMI) -> bool:
    """Whether variables of its firmware outlive a run."""
    firmware = vmi.spec.domain.firmware
    loader = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return bool(loader and loader.persistent)


def persistent_tpm(vmi: VMI) -> bool:
    """The same of what its TPM keeps."""
    tpm = vmi.spec.domain.devices.tpm
    return bool(tpm and tpm.persistent and tpm.enabled is not False)


def sev(vmi: VMI) -> bool:
    """AMD SEV in any of its forms."""
    security = vmi.spec.domain.launch_security
    return bool(security and (security.sev or security.snp))


def snp(vmi: VMI) -> bool:
    return bool(vmi.spec.domain.launch_security and vmi.spec.domain.launch_security.snp)


def tdx(vmi: VMI) -> bool:
    return bool(vmi.spec.domain.launch_security and vmi.spec.domain.launch_security.tdx)


def secure_execution(vmi: VMI) -> bool:
    """IBM Secure Execution: any launch security on s390x."""
    return bool(vmi.spec.domain.launch_security) and vmi.spec.architecture == "s390x"


def needs_iommu(vmi: VMI) -> bool:
    """Whether devices must go through an IOMMU, because the host cannot read the guest's memory."""
    return sev(vmi) or secure_execution(vmi)


def vfio(vmi: VMI) -> bool:
    """Whether devices of the node are asked for, which map the guest's memory."""
    devices = vmi.spec.domain.devices
    return bool(devices.gpus or devices.host_devices or any(i.sriov for i in devices.interfaces))


def taps(vmi: VMI) -> list[Interface]:
    """Interfaces that end in a tap or another link of the Pod."""
    interfaces = vmi.spec.domain.devices.interfaces
    return [i for i in interfaces if i.state != "absent" and not i.sriov and not i.passt_binding]


def shares_directories(vmi: VMI) -> bool:
    return any(f.virtiofs for f in vmi.spec.domain.devices.filesystems)


def shares_memory(vmi: VMI) -> bool:
    """Whether another process maps the guest's memory: who shares directories, or passt."""
    return shares_directories(vmi) or any(i.passt_binding for i in vmi.spec.domain.devices.interfaces)


def guaranteed(vmi: VMI) -> bool:
    """Whether the VM's Pod is to have all that it may ever use from its beginning."""
    resources = vmi.spec.domain.resources
    asked, may = resources.requests, resources.limits
    same = all(name in may and asked.get(name, may[name]) == may[name] for name in ("cpu", "memory"))
    return dedicated_cpus(vmi) or same


def memory_is_there(vmi: VMI) -> bool:
    """Whether all of the guest's memory is touched before it starts, and stays."""
    return hugepages(vmi) or (guaranteed(vmi) and shares_directories(vmi))


def hostname(vmi: VMI) -> str:
    """The guest's name: as said, else the VM's up to its first dot, as far as a host name may be long."""
    return vmi.spec.hostname or vmi.metadata.name.partition(".")[0][:63].rstrip("-")


def non_root(vmi: VMI) -> bool:
    return bool(vmi.status.runtime_user) or names.NON_ROOT in vmi.metadata.annotations


def starts_paused(vmi: VMI) -> bool:
    return vmi.spec.start_strategy == "Paused"


def graphics(vmi: VMI) -> bool:
    return vmi.spec.domain.devices.autoattach_graphics_device is not False


def serial_console(vmi: VMI) -> bool:
    return vmi.spec.domain.devices.autoattach_serial_console is not False


def console_logged(vmi: VMI, by_default: bool) -> bool:
    """Whether what the guest says there is kept and shown; the installation has a default for it."""
    logged = vmi.spec.domain.devices.log_serial_console
    return serial_console(vmi) and (by_default if logged is None else logged)


def bus(disk: Disk) -> str:
    target = disk.lun or disk.disk or disk.cdrom
    return target.bus if target else ""


SET_KEYS, SET_PASSWORD = "guest-ssh-add-authorized-keys", "guest-set-user-password"


def agent_command(credential: AccessCredential) -> str:
    """By which the guest's agent takes a key or a password; "" where it reaches the guest in another way."""
    method = credential.ssh_public_key.propagation_method if credential.ssh_public_key else None
    if method and method.qemu_guest_agent:
        return SET_KEYS
    return SET_PASSWORD if credential.user_password else ""
