"""Virtuozzo, through its SDK."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor, Evidence
from virtfleet.hypervisors.plain import CONFIGURATION, LIKE_QEMU, PLAIN, PlainMachine, limits
from virtfleet.hypervisors.proof import Program, Step
from virtfleet.hypervisors.support import Supports, works


class Virtuozzo(PlainMachine):
    """Virtuozzo. A `hostDisk` is a ploop image."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtuozzo",
        title="Virtuozzo",
        overheads=LIKE_QEMU,
        launcher_image="virt-launcher-virtuozzo",
        uri="vz:///system",
        daemon="virtvzd",
        root=True,
        privileged=True,
    )
    evidence = Evidence.SCHEMA
    domain_type = "vz"
    disk_format = "ploop"
    supports: ClassVar[Supports] = (
        limits(
            "Virtuozzo",
            ("efi", "libvirt's Virtuozzo driver refuses other firmware"),
            ("live-migration", "VirtFleet has not driven a migration of Virtuozzo yet"),
        )
        | PLAIN
        | CONFIGURATION
        | works("net-bridge net-masquerade")
    )

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (*super().proof(machine), Program("prlctl"))
