"""QEMU with KVM: the default, and the measure for all others."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor
from virtfleet.hypervisors.qemu.hypervisor import OVERHEADS, QEMU, Qemu
from virtfleet.hypervisors.support import Supports, works


class QemuKvm(Qemu):
    """QEMU with KVM."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="qemu-kvm",
        title="QEMU with KVM",
        overheads=OVERHEADS,
        launcher_image="virt-launcher",
        uri="qemu:///session",
        daemon="virtqemud",
        socket="/var/run/libvirt/virtqemud-sock",
        device="kvm",
        machines=True,
        processes=("qemu-system", "qemu-kvm"),
        pid_dir="/run/libvirt/qemu/run",
        vcpu_thread=r"^CPU (\d+)/(?:KVM|TCG)",
        disk_driver="qemu",
    )
    domain_type = "kvm"
    kernel_threads = ("kvm-pit",)
    supports: ClassVar[Supports] = QEMU | works("kvm-hidden sev tdx")
