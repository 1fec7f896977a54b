"""QEMU with the Microsoft hypervisor's root partition (/dev/mshv)."""

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


class Mshv(Hypervisor):
    """QEMU with the Microsoft hypervisor."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="mshv",
        title="QEMU with the Microsoft hypervisor",
        overheads=Overheads.of(
            monitor="2Mi", launcher="40Mi", log_daemon="20Mi", daemon="32Mi", vmm="60Mi", emulation="64Mi"
        ),
        launcher_image="virt-launcher",
        uri="qemu:///session",
        daemon="virtqemud",
        socket="/var/run/libvirt/virtqemud-sock",
        device="mshv",
        processes=("qemu-system",),
        pid_dir="/run/libvirt/qemu/run",
        vcpu_thread=r"^CPU (\d+)/(?:MSHV|TCG)",
        disk_driver="qemu",
    )
    supports: ClassVar[Supports] = without(
        ("kvm-hidden", "there is no KVM to hide"),
        ("sev tdx", "QEMU's MSHV accelerator starts no confidential VMs"),
        ("live-migration", "QEMU's MSHV accelerator cannot transfer the state of virtual CPUs"),
        ("cpu-hotplug", "QEMU's MSHV accelerator has a fixed number of virtual CPUs"),
    )

    def build(self, vmi: VMI, context: Context) -> Element:
        return build(vmi, context, "qemu" if context.emulated else "hyperv")

    def adapt(self, domain: Element, host: Host) -> Element:
        return adapt(domain, host)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return plan(self.descriptor, settings)

    def tuning(self, vmi: VMI) -> Tuning:
        return tuning(vmi)
