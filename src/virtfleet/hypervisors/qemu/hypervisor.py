"""What the hypervisors have in common whose VMM is QEMU: all but the accelerator."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Host, Hypervisor, Overheads, Tuning
from virtfleet.hypervisors.qemu import adapt, daemon, document, tuning

OVERHEADS = Overheads.of(log_daemon="20Mi", daemon="32Mi", vmm="60Mi", emulation=f"{adapt.TRANSLATED_CODE_MIB}Mi")


class Qemu(Hypervisor):
    """QEMU with some accelerator."""

    domain_type: ClassVar[str]
    """Type of the domain where CPUs are not emulated."""
    kernel_threads: ClassVar[tuple[str, ...]] = ()

    def build(self, vmi: VMI, context: Context) -> Element:
        return document.build(vmi, context, "qemu" if context.emulated else self.domain_type)

    def adapt(self, domain: Element, host: Host) -> Element:
        return adapt.adapt(domain, host)

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return daemon.plan(self.descriptor, settings)

    def tuning(self, vmi: VMI, context: Context) -> Tuning:
        return tuning.tuning(vmi, context, kernel_threads=self.kernel_threads)
