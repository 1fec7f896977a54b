"""QEMU with KVM: the default, and the measure for all others."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Descriptor
from virtfleet.hypervisors.qemu.hypervisor import OVERHEADS, Qemu
from virtfleet.hypervisors.support import Supports, without


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
        processes=("qemu-system", "qemu-kvm"),
        pid_dir="/run/libvirt/qemu/run",
        vcpu_thread=r"^CPU (\d+)/(?:KVM|TCG)",
        disk_driver="qemu",
    )
    domain_type = "kvm"
    kernel_threads = ("kvm-pit",)
    supports: ClassVar[Supports] = without(
        ("cpu-hotplug/arm64", "QEMU adds no CPUs to running arm64 machines"),
        ("watchdog/arm64", "QEMU's arm64 machine has no watchdog"),
        ("sound/s390x disk-usb/s390x usb-redirection/s390x", "s390x machines have neither sound nor USB"),
        ("disk-sata/arm64 disk-sata/s390x", "only x86 machines have a SATA controller"),
        ("efi/s390x secure-boot/s390x acpi-tables/s390x", "s390x machines have no EFI and no ACPI"),
        ("hyperv-enlightenments/arm64 hyperv-enlightenments/s390x", "the enlightenments are for x86 guests"),
        ("sev/arm64 sev/s390x", "SEV is a feature of AMD's x86 processors"),
        ("tdx/arm64 tdx/s390x", "TDX is a feature of Intel's x86 processors"),
    )
