"""A domain document while it is being built, with what its parts need to know of the VM."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.devices import Devices
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add
from virtfleet.hypervisors.qemu.architecture import architecture


class Draft:
    """The document, and what several of its parts depend on."""

    __slots__ = ("architecture", "context", "devices", "iommu", "root", "spec", "topology", "virtio", "vmi")

    def __init__(self, vmi: VMI, context: Context, domain_type: str) -> None:
        self.vmi = vmi
        self.context = context
        self.spec: Devices = vmi.spec.domain.devices
        self.architecture = architecture(vmi.spec.architecture)
        self.topology = traits.topology(vmi)
        self.virtio = self.architecture.virtio(self.spec.use_virtio_transitional)
        self.iommu = "on" if traits.needs_iommu(vmi) else ""
        self.root: Element = common.document(vmi, domain_type)
        self.devices: Element = add(self.root, "devices")

    def alias(self, element: Element, name: str) -> None:
        """Name a device, so that it is found again in the running domain."""
        add(element, "alias", name=f"ua-{name}")
