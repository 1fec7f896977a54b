"""Networks beside the cluster's that a VMI is on: what its Pod is asked for, and what takes another Pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from virtfleet.api import interfaceplug
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller.following import Obj, Section
from virtfleet.pods.networks import NETWORKS, attachments


class Attached(msgspec.Struct, omit_defaults=True):
    """An entry of the annotation by which a Pod is asked for."""

    name: str = ""
    namespace: str = ""
    interface: str = ""
    mac: str = ""

    @property
    def network(self) -> str:
        return f"{self.namespace}/{self.name}"


def settle(old: Section, new: Section, instance: Section) -> tuple[Obj, Obj]:
    """Without the interfaces that the instance has."""
    changed = interfaceplug.differs(old, new)
    return interfaceplug.as_of_now(old, instance, new) if changed else dict(old), dict(new)


def read_networks(text: str) -> list[Attached]:
    """What an annotation names; nothing where somebody else has written it in another way."""
    try:
        return msgspec.json.decode(text or "[]", type=list[Attached])
    except msgspec.MsgspecError:
        return []


def wanted(vmi: VMI) -> list[Attached]:
    """What the Pod of a VMI is to have; an interface that is to go, as long as the status knows it."""
    return read_networks(attachments(vmi, [status.name for status in vmi.status.interfaces]).get(NETWORKS, ""))


def requested(wanted: Iterable[Attached], present: Iterable[Attached]) -> list[Attached]:
    """What a running Pod is asked for: no interface of it goes to another network."""
    there = {each.interface: each for each in present}
    return [there.get(each.interface, each) for each in wanted]


def moved(vmi: VMI, pod: Iterable[Attached]) -> list[str]:
    """Networks that an interface of the Pod is to go to, which takes another Pod."""
    there = {each.interface: each.network for each in pod}
    return [each.network for each in wanted(vmi) if there.get(each.interface, each.network) != each.network]


def awaited(vmi: VMI) -> list[str]:
    """Interfaces that are to come, and that nobody has seen in the Pod."""
    secondary = {network.name for network in vmi.spec.networks if network.multus and not network.multus.default}
    known = {status.name for status in vmi.status.interfaces}
    interfaces = [i for i in vmi.spec.domain.devices.interfaces if i.bridge is not None and i.state != "absent"]
    return [interface.name for interface in interfaces if interface.name in secondary - known]


def move(instance: Obj, networks: str) -> str:
    """Why an instance needs another Pod than the one that was asked for these networks."""
    vmi = read(VMI, instance)
    if elsewhere := moved(vmi, read_networks(networks)):
        return f"it goes to network {', '.join(elsewhere)}"
    coming = awaited(vmi)
    return f"its Pod was not given interface {', '.join(coming)} while it ran" if coming else ""
