"""Whether memory can be added to a guest while it runs."""

from __future__ import annotations

from virtfleet.admission.sections import Section, read
from virtfleet.api.quantity import BINARY, Quantity

_BLOCK = 2 * 1024**2
_BLOCK_OF_1G_PAGES = 1024**3
_LEAST_GUEST = 1024**3


def why_not(spec: Section, max_guest: Quantity) -> str | None:
    """Why this machine cannot grow up to `max_guest`, and what to change; None where it can."""
    domain = read(spec, "domain")
    cpu, memory = read(domain, "cpu"), read(domain, "memory")
    if cpu.get("realtime") is not None:
        return "memory cannot be added to a realtime guest; remove maxGuest or realtime"
    if read(cpu, "numa").get("guestMappingPassthrough") is not None:
        return "memory cannot be added to a guest with guestMappingPassthrough; remove maxGuest or numa"
    if domain.get("launchSecurity") is not None:
        return "memory cannot be added to an encrypted guest; remove maxGuest or launchSecurity"
    if memory.get("guest") is None:
        return "maxGuest needs guest memory to grow from; set memory.guest"
    guest = Quantity.parse(memory["guest"])
    if guest > max_guest:
        return f"guest memory {guest} is more than maxGuest {max_guest}; raise maxGuest or lower guest"
    block = _BLOCK_OF_1G_PAGES if read(memory, "hugepages").get("pageSize") == "1Gi" else _BLOCK
    for name, amount in (("guest", guest), ("maxGuest", max_guest)):
        if amount.value() % block:
            return f"{name} {amount} must be a multiple of {Quantity.of(block, BINARY)} so that memory can be added"
    if spec.get("architecture") != "amd64":
        return "memory can be added only to amd64 guests; remove maxGuest"
    if guest.value() < _LEAST_GUEST:
        return "memory can be added only to guests with at least 1Gi; raise guest or remove maxGuest"
    return None
