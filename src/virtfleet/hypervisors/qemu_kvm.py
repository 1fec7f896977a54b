"""QEMU with KVM: the default, and the measure for all others."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor, Evidence
from virtfleet.hypervisors.proof import Step
from virtfleet.hypervisors.qemu.hypervisor import QEMU, Qemu, described
from virtfleet.hypervisors.qemu.tinyguest import tiny_guest
from virtfleet.hypervisors.support import Supports, works


class QemuKvm(Qemu):
    """QEMU with KVM."""

    descriptor: ClassVar[Descriptor] = described(
        name="qemu-kvm",
        title="QEMU with KVM",
        device="kvm",
        processes=("qemu-system", "qemu-kvm"),
        vcpu_thread=r"^CPU (\d+)/(?:KVM|TCG)",
    )
    evidence = Evidence.GUESTS
    domain_type = "kvm"
    kernel_threads = ("kvm-pit",)
    supports: ClassVar[Supports] = QEMU | works("kvm-hidden sev tdx")

    def proof(self, machine: str) -> tuple[Step, ...]:
        guest = (tiny_guest("qemu-system-x86_64", "kvm"),) if machine == "x86_64" else ()  # seen to lie on x86 only
        return (*super().proof(machine), *guest)
