"""VMware ESX hosts; libvirt's driver talks to them over HTTPS, so a Pod here would be a proxy with credentials."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.api.disks import Volume
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors.base import Connection, Descriptor, Events, Evidence
from virtfleet.hypervisors.plain import ELSEWHERE, PLAIN, limits
from virtfleet.hypervisors.support import Supports, works
from virtfleet.hypervisors.vmware import NETWORKS, VmxMachine


class Esx(VmxMachine):
    """VMware ESX. A `hostDisk` is a file of a datastore: /datastore1/vm/disk.vmdk."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="esx",
        title="VMware ESX",
        overheads=ELSEWHERE,
        launcher_image="virt-launcher-esx",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="esx://{host}",
    )
    evidence = Evidence.SCHEMA
    supports: ClassVar[Supports] = (
        limits(
            "ESX",
            ("cloud-init config-disk", "an image that is made here does not lie in a datastore of ESX"),
            ("live-migration", "libvirt moves VMs of ESX through a vCenter only, which VirtFleet does not know"),
            ("efi-persistent", "ESX keeps variables beside its own disks, where no claim is"),
            NETWORKS,
        )
        | PLAIN
        | works("efi")
    )

    @property
    def refusal(self) -> str:
        return "VMs cannot run on hypervisor esx yet: VirtFleet writes their documents, but logs in at no other host"

    def path(self, volume: Volume) -> str:
        assert volume.host_disk is not None
        store, _, file = volume.host_disk.path.strip("/").partition("/")
        if not file:
            raise DomainError(f"volume {volume.name!r}: hostDisk.path names a datastore and its file: /STORE/DISK.vmdk")
        return f"[{store}] {file}"
