"""Whether memory can be added to a guest while it runs."""

from __future__ import annotations

from virtfleet.api.domainspec import CPU, Memory
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.vmi import VirtualMachineInstance

_BLOCK = 2 * 1024**2
_BLOCK_OF_1G_PAGES = 1024**3
_LEAST_GUEST = 1024**3


def block(memory: Memory) -> int:
    """Bytes of which there is always a whole number."""
    return _BLOCK_OF_1G_PAGES if memory.hugepages and memory.hugepages.page_size == "1Gi" else _BLOCK


def why_not(vmi: VirtualMachineInstance, most: Quantity) -> str | None:
    """Why this machine cannot grow up to `most`, and what to change; None where it can."""
    domain = vmi.spec.domain
    cpu, memory = domain.cpu or CPU(), domain.memory or Memory()
    if cpu.realtime is not None:
        return "memory cannot be added to a realtime guest; remove maxGuest or realtime"
    if cpu.numa and cpu.numa.guest_mapping_passthrough is not None:
        return "memory cannot be added to a guest with guestMappingPassthrough; remove maxGuest or numa"
    if domain.launch_security is not None:
        return "memory cannot be added to an encrypted guest; remove maxGuest or launchSecurity"
    if memory.guest is None:
        return "maxGuest needs guest memory to grow from; set memory.guest"
    guest = Quantity.parse(memory.guest)
    if guest > most:
        return f"guest memory {guest} is more than maxGuest {most}; raise maxGuest or lower guest"
    step = block(memory)
    for name, amount in (("guest", guest), ("maxGuest", most)):
        if amount.value() % step:
            return f"{name} {amount} must be a multiple of {Quantity.of(step, BINARY)} so that memory can be added"
    if vmi.spec.architecture != "amd64":
        return "memory can be added only to amd64 guests; remove maxGuest"
    if guest.value() < _LEAST_GUEST:
        return "memory can be added only to guests with at least 1Gi; raise guest or remove maxGuest"
    return None
