"""QEMU with KVM: the default, and the measure for all others."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Host, Hypervisor, Overheads, Tuning
from virtfleet.hypervisors.qemu.adapt import adapt
from virtfleet.hypervisors.qemu.daemon import plan
from virtfleet.hypervisors.qemu.document import build
from virtfleet.hypervisors.qemu.tuning import tuning
from virtfleet.hypervisors.support import Supports, without


class QemuKvm(Hypervisor):
    """QEMU with KVM."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="qemu-kvm",
        title="QEMU with KVM",
        overheads=Overheads.of(
            monitor="2Mi", launcher="40Mi", log_daemon="20Mi", daemon="32Mi", vmm="60Mi", emulation="64Mi"
        ),
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

    def build(self, vmi: VMI, context: Context) -> Element:
        return build(vmi, context, "qemu" if context.emulated else "kvm")

    def adapt(self, domain: Element, host: Host) -> Element:
        return adapt(domain, host)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return plan(self.descriptor, settings)

    def tuning(self, vmi: VMI) -> Tuning:
        return tuning(vmi, kernel_threads=("kvm-pit",))
