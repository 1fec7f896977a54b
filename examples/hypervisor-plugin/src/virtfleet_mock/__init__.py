"""The hypervisor mock. It pretends, on libvirt's test driver, which keeps its domains in memory.

It has all that a hypervisor's developer has to write: a descriptor, what works, what cannot and why, and the domain.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain import common
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Descriptor, Events, Hypervisor, Overheads
from virtfleet.hypervisors.support import Supports, impossible, works


class Mock(Hypervisor):
    """libvirt's test driver."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="mock",
        title="libvirt's test driver",
        overheads=Overheads(daemon="0", vmm="0"),
        launcher_image="virt-launcher-mock",
        connection=Connection.LIBRARY,
        events=Events.NATIVE,
        uri="test:///default",
        disk_bus="virtio",
    )
    supports: ClassVar[Supports] = {
        **works("disk-image disk-virtio container-disk claim ephemeral-disk net-masquerade net-bridge"),
        **impossible(("graphics sound", "the test driver has no devices that a guest could see or hear")),
    }

    def build(self, vmi: VirtualMachineInstance, context: Context) -> Element:
        root = common.document(vmi, "test")
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        add(add(root, "os"), "type", "hvm")
        return root

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return DaemonPlan(uri=self.descriptor.uri)
