"""CPUs and memory of a running VM: how far they follow the template, and what its Pod needs for them. Pure.

Both only grow while the VM runs: sockets up to `maxSockets`, memory up to `maxGuest`, which the guest was started with.
What was asked for and not given yet can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from virtfleet.admission import memory_hotplug
from virtfleet.api import traits
from virtfleet.api.names import VMICondition
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller.following import Following, Obj, Section, at, without
from virtfleet.installation import Installation

SOCKETS: Final = "domain.cpu.sockets"
GUEST: Final = "domain.memory.guest"
_RESIZABLE: Final = ("cpu", "memory")


def follow(instance: Obj, template: Section, cluster: Installation) -> Following:
    """The template's sizes for the instance, with what its Pod is to ask for."""
    vmi = read(VMI, instance)
    spec: Obj = {}
    pending, refused = {}, {}
    sockets, guest = at(template, SOCKETS), at(template, GUEST)
    if sockets and sockets != at(instance["spec"], SOCKETS):
        if why := no_sockets(vmi, sockets):
            refused[SOCKETS] = why
        else:
            spec["cpu"] = {"sockets": sockets}
            pending[VMICondition.CPU_CHANGE] = f"{sockets} sockets are wanted"
            before = traits.topology(vmi)
            more = before._replace(sockets=sockets).vcpus - before.vcpus
            _grow(spec, instance, template, "cpu", Quantity.of_milli(more * 1000 // cluster.cpu_ratio))
    if guest is not None and not _same(guest, at(instance["spec"], GUEST)):
        if why := no_memory(vmi, Quantity.parse(guest)):
            refused[GUEST] = why
        else:
            spec["memory"] = {"guest": str(Quantity.parse(guest))}
            pending[VMICondition.MEMORY_CHANGE] = f"{Quantity.parse(guest)} of memory are wanted"
            _grow(spec, instance, template, "memory", Quantity.parse(guest) - traits.memory(vmi))
    return Following({"domain": spec} if spec else {}, pending, refused)


def settle(old: Section, new: Section, instance: Section) -> tuple[Obj, Obj]:
    """Without the sizes that the instance has, or is getting."""
    same = [path for path in (SOCKETS, GUEST) if _same(at(new, path), at(instance, path))]
    return without(old, same), without(new, same)


def no_sockets(vmi: VMI, sockets: int) -> str:
    """Why a running VM cannot have so many sockets."""
    cpu, now, room = vmi.spec.domain.cpu, vmi.status.current_cpu_topology, vmi.status.pod_room
    if cpu is None or not cpu.max_sockets:
        return "no room was kept for more CPUs when the VM was started"
    if cpu.dedicated_cpu_placement or cpu.realtime or cpu.numa:
        return "the VM has CPUs of its own"
    if sockets > cpu.max_sockets:
        return f"the VM was started with room for {cpu.max_sockets} sockets"
    least = max((now and now.sockets) or 1, (room and room.sockets) or 0)
    return f"CPUs are not taken from a running VM, which has {least} sockets" if sockets < least else ""


def no_memory(vmi: VMI, guest: Quantity) -> str:
    """Why the guest of a running VM cannot have so much memory."""
    memory, now, room = vmi.spec.domain.memory, vmi.status.memory, vmi.status.pod_room
    if memory is None or memory.max_guest is None or now is None:
        return "no room was kept for more memory when the VM was started"
    most = Quantity.parse(memory.max_guest)
    if guest > most:
        return f"the VM was started with room for {most}"
    given = (now.guest_at_boot, now.guest_requested, room.guest if room else None)
    least = max(Quantity.parse(amount or 0) for amount in given)
    if guest < least:
        return f"memory is not taken from a running VM, which has {least}"
    block = memory_hotplug.block(memory)
    return f"memory grows in steps of {Quantity.of(block, BINARY)}" if guest.value() % block else ""


def _grow(spec: Obj, instance: Obj, template: Section, name: str, more: Quantity) -> None:
    """What the VM asks its Pod's node for in so many words grows along; the rest follows from the sizes."""
    for kind in ("requests", "limits"):
        path = f"domain.resources.{kind}.{name}"
        said = at(instance["spec"], path)
        if at(template, path) is not None and said is not None:
            spec.setdefault("resources", {}).setdefault(kind, {})[name] = str(Quantity.parse(said) + more)


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return Quantity.parse(one) == Quantity.parse(other)


# --- what the domain has of it


def given(vmi: VMI) -> bool:
    """Whether the domain was given all that the spec asks for."""
    now, memory = vmi.status.current_cpu_topology, vmi.status.memory
    has = ((now and now.sockets) or 0) >= traits.topology(vmi).sockets
    asked = memory is None or memory.guest_requested is None or Quantity.parse(memory.guest_requested)
    return has and (asked is True or asked >= traits.memory(vmi))


# --- what the Pod has of it


Resources = Mapping[str, Mapping[str, Any]]


class Shortage(NamedTuple):
    """An amount that a Pod's container has otherwise than it is wanted."""

    kind: str
    resource: str
    wanted: str

    @property
    def resizable(self) -> bool:
        return self.resource in _RESIZABLE


def shortages(has: Resources, wanted: Resources) -> Iterator[Shortage]:
    """What a container's resources lack, or have too much, of what is wanted."""
    for kind in ("requests", "limits"):
        for name, amount in (wanted.get(kind) or {}).items():
            if not _same((has.get(kind) or {}).get(name), amount):
                yield Shortage(kind, name, str(amount))
