"""VMware Workstation and Player; libvirt's driver runs inside the client library and calls vmrun."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add
from virtfleet.hypervisors.base import Connection, Descriptor, Events, Evidence, Overheads
from virtfleet.hypervisors.plain import CONFIGURATION, PLAIN, PlainMachine, limits
from virtfleet.hypervisors.proof import Program, Step
from virtfleet.hypervisors.support import Supports

_STEP = 4 * 2**20  # bytes: memory of a VM is a multiple of it
NETWORKS = ("net-bridge net-masquerade", "networks are those of VMware; set autoattachPodInterface: false")


class VmxMachine(PlainMachine):
    """A machine that libvirt writes down as VMware's configuration file."""

    domain_type = "vmware"

    def build(self, vmi: VMI, context: Context) -> Element:
        root = super().build(vmi, context)
        memory = root.find("memory")
        if memory is not None and int(memory.text or 0) % _STEP:
            raise DomainError("spec.domain.memory.guest: VMware wants a multiple of 4Mi")
        cpus = int(root.findtext("vcpu") or 1)
        if cpus > 1 and cpus % 2:
            raise DomainError(f"spec.domain.cpu: VMware wants one CPU or an even number, and these are {cpus}")
        devices = root.find("devices")
        if devices is not None and devices.find("disk/target[@bus='scsi']") is not None:
            add(devices, "controller", type="scsi", index=0, model="lsilogic")
        return root


class Vmware(VmxMachine):
    """VMware Workstation."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="vmware",
        title="VMware Workstation",
        overheads=Overheads(
            daemon="0", vmm="60Mi", estimate="the VMM is taken to need what QEMU does; the driver lives in the launcher"
        ),
        launcher_image="virt-launcher-vmware",
        connection=Connection.LIBRARY,
        events=Events.POLLED,
        uri="vmwarews:///session",
        device="vmmon",
        processes=("vmware-vmx",),
    )
    evidence = Evidence.DRIVER
    supports: ClassVar[Supports] = (
        limits(
            "VMware",
            ("live-migration", "libvirt's VMware driver cannot migrate"),
            ("efi", "libvirt's VMware driver takes no choice of firmware"),
            NETWORKS,
        )
        | PLAIN
        | CONFIGURATION
    )

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (*super().proof(machine), Program("vmrun"))
