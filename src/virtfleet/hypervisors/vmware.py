"""VMware: Workstation and Player, whose driver runs inside the client library and calls vmrun, and ESX."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.disks import Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors.base import Connection, Descriptor, Events, Evidence, Overheads
from virtfleet.hypervisors.plain import ELSEWHERE, PlainMachine, limits
from virtfleet.hypervisors.support import Supports

_STEP = 4 * 2**20  # bytes: memory of a VM is a multiple of it
_NETWORKS = ("net-bridge net-masquerade", "networks are those of VMware; set autoattachPodInterface: false")


class VmxMachine(PlainMachine):
    """A machine that libvirt writes down as VMware's configuration file."""

    domain_type = "vmware"

    def build(self, vmi: VMI, context: Context) -> Element:
        root = super().build(vmi, context)
        if int(root.findtext("memory") or 0) % _STEP:
            raise DomainError("spec.domain.memory.guest: VMware wants a multiple of 4Mi")
        cpus = int(root.findtext("vcpu") or 1)
        if cpus > 1 and cpus % 2:
            raise DomainError(f"spec.domain.cpu: VMware wants one CPU or an even number, and these are {cpus}")
        if root.find("devices/disk/target[@bus='scsi']") is not None:
            add(child(root, "devices"), "controller", type="scsi", index=0, model="lsilogic")
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
        program="vmrun",
        processes=("vmware-vmx",),
    )
    evidence = Evidence.DRIVER
    supports: ClassVar[Supports] = limits(
        "VMware",
        ("live-migration", "libvirt's VMware driver cannot migrate"),
        ("efi", "libvirt's VMware driver takes no choice of firmware"),
        _NETWORKS,
        has="cloud-init config-disk",
    )


class Esx(VmxMachine):
    """VMware ESX hosts; libvirt's driver talks to them over HTTPS, so a Pod here would be a proxy with credentials.

    A `hostDisk` is a file of a datastore: /datastore1/vm/disk.vmdk.
    """

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="esx",
        title="VMware ESX",
        overheads=ELSEWHERE,
        launcher_image="virt-launcher-esx",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="esx://{host}",
    )
    refusal = "VMs cannot run on hypervisor esx yet: VirtFleet writes their documents, but logs in at no other host"
    evidence = Evidence.SCHEMA
    supports: ClassVar[Supports] = limits(
        "ESX",
        ("cloud-init config-disk", "an image that is made here does not lie in a datastore of ESX"),
        ("live-migration", "libvirt moves VMs of ESX through a vCenter only, which VirtFleet does not know"),
        ("efi-persistent", "ESX keeps variables beside its own disks, where no claim is"),
        _NETWORKS,
        has="efi",
    )

    def path(self, volume: Volume) -> str:
        assert volume.host_disk is not None
        store, _, file = volume.host_disk.path.strip("/").partition("/")
        if not file:
            raise DomainError(f"volume {volume.name!r}: hostDisk.path names a datastore and its file: /STORE/DISK.vmdk")
        return f"[{store}] {file}"
