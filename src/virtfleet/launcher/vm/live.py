"""What must change in a running domain: its devices against those that the VMI asks for now, its CPUs and memory.

Devices are told apart by what their hypervisor knows them by, which must not depend on what its driver forgets. They
are changed one after the other: what fails of one is none of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple
from xml.etree.ElementTree import Element

import libvirt

from virtfleet.domain.xml import attribute, child, text
from virtfleet.hypervisors.base import Hypervisor, own_alias
from virtfleet.launcher.failure import Failure
from virtfleet.protocol.messages import NodeFacts

_KINDS = ("disk", "interface")
_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
# What libvirt says of a device that the guest has not let go of yet, or just has.
_BEING_REMOVED = (libvirt.VIR_ERR_OPERATION_FAILED, libvirt.VIR_ERR_DEVICE_MISSING)
Identity = Callable[[Element], str]


class Changes(NamedTuple):
    """Devices to remove, then to add, then to change in place; by their documents."""

    detach: list[Element]
    attach: list[Element]
    update: list[Element]


def devices(domain: Element, identity: Identity) -> dict[tuple[str, str], Element]:
    """Disks and interfaces by kind and identity."""
    every = ((kind, device) for kind in _KINDS for device in domain.iterfind(f"devices/{kind}"))
    return {(kind, known): device for kind, device in every if (known := identity(device))}


def changes(running: Element, wanted: Element, identity: Identity, but: Collection[tuple[str, str]] = ()) -> Changes:
    """From the devices of a running domain to those of a document made anew. Those of `but` are not looked at."""
    now, then = (
        {key: device for key, device in devices(domain, identity).items() if key not in but}
        for domain in (running, wanted)
    )
    return Changes(
        detach=[device for key, device in now.items() if key not in then],
        attach=[device for key, device in then.items() if key not in now],
        update=[
            changed
            for key, device in then.items()
            if key in now and (changed := _changed(key[0], now[key], device)) is not None
        ],
    )


def _changed(kind: str, now: Element, then: Element) -> Element | None:
    """The running device with what may change while it is in use: the medium in a drive, the state of a link."""
    if kind == "interface":
        if _link(now) == _link(then):
            return None
        child(now, "link").set("state", _link(then))
        return now
    if then.get("device") == "cdrom" and _source(now) != _source(then):
        return then
    return None


def _link(interface: Element) -> str:
    return attribute(interface, "link", "state", "up")


def _source(disk: Element) -> str:
    return attribute(disk, "source", "file") or attribute(disk, "source", "dev")


def _has_medium(disk: Element) -> bool:
    """Whether anything is in it. Of a drive that has become empty libvirt keeps the number of what was there."""
    source = disk.find("source")
    return source is not None and bool(source.attrib.keys() - {"index"} or len(source))


def disks(domain: Element) -> dict[str, str]:
    """Targets in the guest by the volumes that they show; an empty drive shows none."""
    shown = [disk for disk in domain.iterfind("devices/disk[target]") if _has_medium(disk)]
    return {name: attribute(disk, "target", "dev") for disk in shown if (name := own_alias(disk))}


def links(domain: Element) -> dict[str, str]:
    """The state of each interface's link, by hardware address, which is there whatever the driver forgets."""
    known = domain.iterfind("devices/interface[mac]")
    return {attribute(device, "mac", "address").lower(): _link(device) for device in known}


class Growth(NamedTuple):
    """What is to be done to a running domain; nothing where both are empty."""

    vcpus: int
    memory: Element | None

    def __bool__(self) -> bool:
        return bool(self.vcpus) or self.memory is not None

    def apply(self, domain: libvirt.virDomain, running: Element) -> None:
        if self.vcpus:
            domain.setVcpusFlags(self.vcpus, _LIVE)
        if self.memory is not None:
            known = running.find("devices/memory[@model='virtio-mem']") is not None
            (domain.updateDeviceFlags if known else domain.attachDeviceFlags)(text(self.memory), _LIVE)


def growth(running: Element, node: NodeFacts, hypervisor: Hypervisor) -> Growth:
    """What is missing in a running domain of what its Pod has room for. Nothing is ever taken from a guest."""
    memory = hypervisor.more_memory(running, node.memory) if node.memory else None
    return Growth(_vcpus(running, node.sockets), memory)


def _vcpus(running: Element, sockets: int) -> int:
    count, topology = running.find("vcpu"), running.find("cpu/topology")
    if count is None or topology is None:
        return 0
    now, most = int(count.get("current") or count.text or 0), int(count.text or 0)
    wanted = min(sockets * int(topology.get("cores", "1")) * int(topology.get("threads", "1")), most)
    return wanted if wanted > now else 0


def carry_out(domain: libvirt.virDomain, change: Changes, grow: Callable[[], object]) -> None:
    """Remove, add and change devices, then let the guest grow. Of several failures the first one is told."""
    steps: list[Callable[[], object]] = [
        *(partial(_detach, domain, device) for device in change.detach),
        *(partial(_attach, domain, device) for device in change.attach),
        *(partial(domain.updateDeviceFlags, text(device), _LIVE) for device in change.update),
        grow,
    ]
    failures = [failure for step in steps if (failure := _failure(step))]
    if failures:
        raise failures[0]


def _failure(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except (libvirt.libvirtError, Failure) as error:
        return error
    return None


def _attach(domain: libvirt.virDomain, device: Element) -> None:
    try:
        domain.attachDeviceFlags(text(device), _LIVE)
    except libvirt.libvirtError as error:
        if device.get("device") != "lun":
            raise
        what = f"volume {own_alias(device)} cannot be a lun, which takes a block claim of a SCSI device on the node"
        raise Failure(f"{what}: remove it and add it as a disk ({error})") from None


def _detach(domain: libvirt.virDomain, device: Element) -> None:
    """Ask the guest to let go of a device, and do not wait for it: an event tells when it has."""
    try:
        try:
            domain.detachDeviceAlias(attribute(device, "alias", "name"), _LIVE)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            domain.detachDeviceFlags(text(device), _LIVE)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _BEING_REMOVED:
            raise
