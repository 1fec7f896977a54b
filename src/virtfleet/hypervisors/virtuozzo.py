"""Virtuozzo, through its SDK."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor, Evidence
from virtfleet.hypervisors.plain import LIKE_QEMU, PlainMachine, limits
from virtfleet.hypervisors.support import Supports


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
        program="prlctl",
    )
    evidence = Evidence.SCHEMA
    domain_type = "vz"
    disk_format = "ploop"
    supports: ClassVar[Supports] = limits(
        "Virtuozzo",
        ("efi", "libvirt's Virtuozzo driver refuses other firmware"),
        ("live-migration", "VirtFleet has not driven a migration of Virtuozzo yet"),
        has="cloud-init config-disk net-bridge net-masquerade",
    )
