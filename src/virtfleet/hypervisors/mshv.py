"""QEMU with the Microsoft hypervisor's root partition (/dev/mshv)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from virtfleet.hypervisors.base import Descriptor, Evidence
from virtfleet.hypervisors.qemu.hypervisor import OVERHEADS, QEMU, Qemu, described
from virtfleet.hypervisors.support import Level, Support, Supports, impossible


class Mshv(Qemu):
    """QEMU with the Microsoft hypervisor."""

    descriptor: ClassVar[Descriptor] = described(
        name="mshv",
        title="QEMU with the Microsoft hypervisor",
        overheads=msgspec.structs.replace(OVERHEADS, estimate="measured with the same QEMU, but without /dev/mshv"),
        device="mshv",
        processes=("qemu-system",),
        vcpu_thread=r"^CPU (\d+)/(?:MSHV|TCG)",
    )
    evidence = Evidence.SCHEMA
    domain_type = "hyperv"
    supports: ClassVar[Supports] = {
        **QEMU,
        **impossible(
            ("kvm-hidden", "there is no KVM to hide"),
            ("sev tdx", "QEMU's MSHV accelerator starts no confidential VMs"),
        ),
        "live-migration": Support(
            Level.EXPERIMENTAL,
            "only the latest QEMU transfers the state of CPUs on MSHV",
            gate="ConfigurableHypervisor",
        ),
    }
