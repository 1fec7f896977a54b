"""Oracle VirtualBox 6.1 and later."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor, Events, Evidence
from virtfleet.hypervisors.plain import LIKE_QEMU, PlainMachine, limits
from virtfleet.hypervisors.support import Supports


class VirtualBox(PlainMachine):
    """VirtualBox."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="virtualbox",
        title="VirtualBox",
        overheads=LIKE_QEMU,
        launcher_image="virt-launcher-virtualbox",
        events=Events.POLLED,
        uri="vbox:///session",
        daemon="virtvboxd",
        device="vboxdrv",
        program="VBoxHeadless",
        processes=("VBoxHeadless",),
    )
    evidence = Evidence.SCHEMA
    domain_type = "vbox"
    models: ClassVar[dict[str, str]] = {"e1000": "82540EM", "pcnet": "Am79C973"}
    supports: ClassVar[Supports] = limits(
        "VirtualBox",
        ("efi", "libvirt's VirtualBox driver boots BIOS only"),
        ("live-migration", "libvirt's VirtualBox driver cannot migrate"),
        has="cloud-init config-disk net-bridge net-masquerade",
    )
