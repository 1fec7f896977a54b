"""A domain document while it is being built, with what its parts need to know of the VM and its machine."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.devices import Devices
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add


class Architecture(NamedTuple):
    """One machine architecture, as QEMU and libvirt see it."""

    name: str
    os_type: str
    machine: str
    watchdog: str = ""
    firmware_dir: str = ""

    @property
    def pc(self) -> bool:
        """Whether it is x86, with all that only PCs have."""
        return self.name == "amd64"

    @property
    def pci(self) -> bool:
        """Whether devices are on PCI, where virtio devices come in a transitional and a modern form."""
        return self.name != "s390x"


_ARCHITECTURES = {
    "amd64": Architecture("amd64", "x86_64", "q35", "i6300esb", "/usr/share/edk2/ovmf"),
    "arm64": Architecture("arm64", "aarch64", "virt", firmware_dir="/usr/share/AAVMF"),
    "s390x": Architecture("s390x", "s390x", "s390-ccw-virtio", "diag288"),
}


class Draft:
    """The document, and what several of its parts depend on."""

    __slots__ = ("architecture", "context", "devices", "iommu", "root", "spec", "topology", "virtio", "vmi")

    def __init__(self, vmi: VMI, context: Context, domain_type: str) -> None:
        self.vmi = vmi
        self.context = context
        self.spec: Devices = vmi.spec.domain.devices
        # amd64 where none is given, or one that QEMU is not built for here
        self.architecture = _ARCHITECTURES.get(vmi.spec.architecture, _ARCHITECTURES["amd64"])
        self.topology = traits.topology(vmi)
        form = "-transitional" if self.spec.use_virtio_transitional else "-non-transitional"
        self.virtio = f"virtio{form if self.architecture.pci else ''}"  # the model of virtio devices
        self.iommu = "on" if traits.needs_iommu(vmi) else ""
        self.root: Element = common.document(vmi, domain_type)
        self.devices: Element = add(self.root, "devices")

    def alias(self, element: Element, name: str) -> None:
        """Name a device, so that it is found again in the running domain."""
        add(element, "alias", name=f"ua-{name}")
