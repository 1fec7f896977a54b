"""More CPUs and memory for the domain that runs, as far as its Pod has room."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import Element

import libvirt

from virtfleet.domain.xml import text
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.protocol.messages import NodeFacts

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE


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


def of(running: Element, node: NodeFacts, hypervisor: Hypervisor) -> Growth:
    """What is missing in a running domain of what it may have. Nothing is ever taken from a guest."""
    memory = hypervisor.more_memory(running, node.memory) if node.memory else None
    return Growth(_vcpus(running, node.sockets), memory)


def _vcpus(running: Element, sockets: int) -> int:
    count, topology = running.find("vcpu"), running.find("cpu/topology")
    if count is None or topology is None:
        return 0
    now, most = int(count.get("current") or count.text or 0), int(count.text or 0)
    wanted = min(sockets * int(topology.get("cores", "1")) * int(topology.get("threads", "1")), most)
    return wanted if wanted > now else 0
