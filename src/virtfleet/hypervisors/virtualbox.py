"""Oracle VirtualBox 6.1 and later."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor, Events, Evidence
from virtfleet.hypervisors.plain import CONFIGURATION, LIKE_QEMU, PLAIN, PlainMachine, limits
from virtfleet.hypervisors.proof import Program, Step
from virtfleet.hypervisors.support import Supports, works

_MODELS = {"e1000": "82540EM", "pcnet": "Am79C973"}


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
        processes=("VBoxHeadless",),
    )
    evidence = Evidence.SCHEMA
    domain_type = "vbox"
    supports: ClassVar[Supports] = (
        limits(
            "VirtualBox",
            ("efi", "libvirt's VirtualBox driver boots BIOS only"),
            ("live-migration", "libvirt's VirtualBox driver cannot migrate"),
        )
        | PLAIN
        | CONFIGURATION
        | works("net-bridge net-masquerade")
    )

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (*super().proof(machine), Program("VBoxHeadless"))

    def interface_model(self, model: str) -> str:
        return _MODELS.get(model, model)
