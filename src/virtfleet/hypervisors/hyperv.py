"""Hyper-V hosts; libvirt's driver talks to them over WS-Management, so a Pod here would be a proxy with credentials."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.api.disks import Volume
from virtfleet.hypervisors.base import Connection, Descriptor, Events, Evidence
from virtfleet.hypervisors.plain import ELSEWHERE, PlainMachine, limits
from virtfleet.hypervisors.support import Supports


class HyperV(PlainMachine):
    """Microsoft Hyper-V. A `hostDisk` is a file of the Hyper-V host, of the format vhdx."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="hyperv",
        title="Microsoft Hyper-V",
        overheads=ELSEWHERE,
        launcher_image="virt-launcher-hyperv",
        connection=Connection.REMOTE,
        events=Events.POLLED,
        uri="hyperv://{host}",
        disk_bus="scsi",
    )
    refusal = "VMs cannot run on hypervisor hyperv yet: VirtFleet writes their documents, but logs in at no other host"
    evidence = Evidence.SCHEMA
    domain_type = "hyperv"
    supports: ClassVar[Supports] = limits(
        "Hyper-V",
        ("disk-sata", "Hyper-V has IDE and SCSI disks"),
        ("cloud-init config-disk", "an image that is made here does not lie on the Hyper-V host"),
        ("efi", "libvirt's Hyper-V driver defines machines with a BIOS only"),
        ("net-bridge net-masquerade", "networks are virtual switches of the Hyper-V host"),
        ("live-migration", "libvirt's Hyper-V driver cannot migrate"),
    )

    def path(self, volume: Volume) -> str:
        assert volume.host_disk is not None
        return volume.host_disk.path
