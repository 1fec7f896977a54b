"""Changes of a running domain: devices one after the other, where what fails of one is none of the others; and growth.

More CPUs and memory the guest gets as far as its Pod has room.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from xml.etree import ElementTree as ET

import libvirt

from virtfleet.domain.xml import attribute, text
from virtfleet.hypervisors.base import Hypervisor, own_alias
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm.live import Changes
from virtfleet.protocol.messages import NodeFacts

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
# What libvirt says of a device that the guest has not let go of yet, or just has.
_BEING_REMOVED = (libvirt.VIR_ERR_OPERATION_FAILED, libvirt.VIR_ERR_DEVICE_MISSING)


class Growth(NamedTuple):
    """What is to be done to a running domain; nothing where both are empty."""

    vcpus: int
    memory: ET.Element | None

    def __bool__(self) -> bool:
        return bool(self.vcpus) or self.memory is not None

    def apply(self, domain: libvirt.virDomain, running: ET.Element) -> None:
        if self.vcpus:
            domain.setVcpusFlags(self.vcpus, _LIVE)
        if self.memory is not None:
            known = running.find("devices/memory[@model='virtio-mem']") is not None
            (domain.updateDeviceFlags if known else domain.attachDeviceFlags)(text(self.memory), _LIVE)


def growth(running: ET.Element, node: NodeFacts, hypervisor: Hypervisor) -> Growth:
    """What is missing in a running domain of what it may have. Nothing is ever taken from a guest."""
    memory = hypervisor.more_memory(running, node.memory) if node.memory else None
    return Growth(_vcpus(running, node.sockets), memory)


def _vcpus(running: ET.Element, sockets: int) -> int:
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


def _attach(domain: libvirt.virDomain, device: ET.Element) -> None:
    try:
        domain.attachDeviceFlags(text(device), _LIVE)
    except libvirt.libvirtError as error:
        if device.get("device") != "lun":
            raise
        what = f"volume {own_alias(device)} cannot be a lun, which takes a block claim of a SCSI device on the node"
        raise Failure(f"{what}: remove it and add it as a disk ({error})") from None


def _detach(domain: libvirt.virDomain, device: ET.Element) -> None:
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
