"""CPUs and memory of a running VM: how far they follow the template, and what its Pod needs for them. Pure.

Both only grow while the VM runs: sockets up to `maxSockets`, memory up to `maxGuest`, which the guest was started with.
What was asked for and not given yet can be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, Final

from virtfleet.admission import memory_hotplug
from virtfleet.api import traits
from virtfleet.api.names import VMICondition
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller.following import Following, Obj, Section, at, settled
from virtfleet.hypervisors import features, registry
from virtfleet.hypervisors.support import Level
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
    return settled(old, new, instance, (SOCKETS, GUEST), _same)


def no_sockets(vmi: VMI, sockets: int) -> str:
    """Why a running VM cannot have so many sockets."""
    cpu, now, room = vmi.spec.domain.cpu, vmi.status.current_cpu_topology, vmi.status.pod_room
    if cpu is None or not cpu.max_sockets:
        return _none_kept(vmi, "cpu-hotplug", "CPUs")
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
        return _none_kept(vmi, "memory-hotplug", "memory")
    most = Quantity.parse(memory.max_guest)
    if guest > most:
        return f"the VM was started with room for {most}"
    given = (now.guest_at_boot, now.guest_requested, room.guest if room else None)
    least = max(Quantity.parse(amount or 0) for amount in given)
    if guest < least:
        return f"memory is not taken from a running VM, which has {least}"
    block = memory_hotplug.block(memory)
    return f"memory grows in steps of {Quantity.of(block, BINARY)}" if guest.value() % block else ""


def _none_kept(vmi: VMI, feature: str, what: str) -> str:
    """Why a VM was started without room to grow, as far as that is its hypervisor's doing."""
    said = f"no room was kept for more {what} when the VM was started"
    with suppress(registry.UnknownHypervisor):
        has = features.support(registry.of(vmi), feature, vmi.spec.architecture or "amd64")
        return has.reason if has.level is not Level.WORKS and has.reason else said
    return said


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
_ROUNDED: Final = Fraction(98, 100)  # nodes tell of CPUs what they had to round


def changed(has: Resources, wanted: Resources) -> Obj:
    """What a container's resources have otherwise than it is wanted."""
    kinds = {
        kind: {name: str(amount) for name, amount in said.items() if not _same((has.get(kind) or {}).get(name), amount)}
        for kind, said in ((kind, wanted.get(kind) or {}) for kind in ("requests", "limits"))
    }
    return {kind: amounts for kind, amounts in kinds.items() if amounts}


def limited(has: Resources, wanted: Resources, vcpus: int) -> dict[str, float]:
    """Limits of a container that its namespace asked for, in the same proportion for what is wanted now."""
    asked = {name: Quantity.parse(amount).value() for name, amount in (has.get("requests") or {}).items()}
    limits = {name: Quantity.parse(amount).value() for name, amount in (has.get("limits") or {}).items()}
    proportions = {"cpu": vcpus, "memory": limits.get("memory", 0) / (asked.get("memory") or 1)}
    return {
        name: proportions[name] for name in _RESIZABLE if name in limits.keys() - (wanted.get("limits") or {}).keys()
    }


def fixed(change: Resources) -> list[str]:
    """Resources of a change that a Pod which runs cannot have otherwise."""
    return sorted({name for amounts in change.values() for name in amounts} - set(_RESIZABLE))


def enough(has: Resources | None, wanted: Resources) -> bool:
    """Whether a container has been given what is wanted. Of a node that does not say, nobody asked for more."""
    if has is None:
        return True
    return all(
        Quantity.parse((has.get(kind) or {}).get(name) or 0).nano >= Quantity.parse(amount).nano * _ROUNDED
        for kind in ("requests", "limits")
        for name, amount in (wanted.get(kind) or {}).items()
        if name in _RESIZABLE
    )
