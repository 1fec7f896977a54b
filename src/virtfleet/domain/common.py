"""Parts of a domain document that are the same for every hypervisor: name, size, clock, identity."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.domainspec import Clock
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Smbios
from virtfleet.domain.xml import add, yes_no

METADATA = "{http://kubevirt.io}"


def document(vmi: VMI, domain_type: str) -> Element:
    """A document that says who the VM is, and nothing more."""
    root = Element("domain", {"type": domain_type})
    add(root, "name", name(vmi))
    metadata = add(add(root, "metadata"), f"{METADATA}kubevirt")
    add(metadata, f"{METADATA}uid", vmi.metadata.uid)
    return root


def name(vmi: VMI) -> str:
    """Name of a VMI's domain."""
    return f"{vmi.metadata.namespace}_{vmi.metadata.name}"


def memory(root: Element, vmi: VMI) -> None:
    add(root, "memory", traits.whole_bytes(traits.memory(vmi)), unit="b")


def vcpus(root: Element, count: int) -> None:
    add(root, "vcpu", count, placement="static")


def smbios(root: Element, vmi: VMI, identity: Smbios) -> None:
    """What the guest reads from SMBIOS."""
    sysinfo = add(root, "sysinfo", type="smbios")
    system = add(sysinfo, "system")
    if firmware := vmi.spec.domain.firmware:
        add(system, "entry", firmware.uuid, name="uuid")
        if firmware.serial:
            add(system, "entry", firmware.serial, name="serial")
    for key in ("manufacturer", "family", "product", "sku", "version"):
        add(system, "entry", getattr(identity, key), name=key)
    if chassis := vmi.spec.domain.chassis:
        element = add(sysinfo, "chassis")
        for key in ("manufacturer", "version", "serial", "asset", "sku"):
            add(element, "entry", getattr(chassis, key), name=key)


def kernel(os: Element, vmi: VMI) -> None:
    """A kernel that is booted by itself, with what belongs to it."""
    firmware = vmi.spec.domain.firmware
    if not firmware or not (boot := firmware.kernel_boot):
        return
    if boot.container and boot.container.kernel_path:
        add(os, "kernel", paths.kernel_boot(boot.container.kernel_path))
    if boot.container and boot.container.initrd_path:
        add(os, "initrd", paths.kernel_boot(boot.container.initrd_path))
    if boot.kernel_args:
        add(os, "cmdline", boot.kernel_args)


def clock(root: Element, vmi: VMI) -> None:
    frequency = tsc_frequency(vmi)
    if not vmi.spec.domain.clock and not frequency:
        return
    element = add(root, "clock")
    if wanted := vmi.spec.domain.clock:
        if wanted.utc:
            element.set("offset", "utc")
            offset = wanted.utc.offset_seconds
            element.set("adjustment", "reset" if offset is None else str(offset))
        elif wanted.timezone:
            element.set("offset", "timezone")
            element.set("timezone", wanted.timezone)
        _timers(element, wanted)
    if frequency:
        add(element, "timer", name="tsc", frequency=frequency)


def _timers(element: Element, clock: Clock) -> None:
    if not (timer := clock.timer):
        return
    if rtc := timer.rtc:
        present = yes_no(rtc.present)
        add(element, "timer", name="rtc", track=rtc.track, tickpolicy=rtc.tick_policy, present=present)
    if pit := timer.pit:
        add(element, "timer", name="pit", present=yes_no(pit.present), tickpolicy=pit.tick_policy)
    if kvm := timer.kvm:
        add(element, "timer", name="kvmclock", present=yes_no(kvm.present))
    if hpet := timer.hpet:
        add(element, "timer", name="hpet", present=yes_no(hpet.present), tickpolicy=hpet.tick_policy)
    if hyperv := timer.hyperv:
        add(element, "timer", name="hypervclock", present=yes_no(hyperv.present))


def tsc_frequency(vmi: VMI) -> int | None:
    """The frequency that the guest's time stamp counter must have, where the guest relies on it."""
    hints = vmi.status.topology_hints
    if not hints or not hints.tsc_frequency or hints.tsc_frequency < 0:
        return None
    cpu = vmi.spec.domain.cpu
    invariant = cpu and any(f.name == "invtsc" and f.policy in ("require", "force") for f in cpu.features)
    return hints.tsc_frequency if invariant or notified_of_tsc(vmi) else None


def notified_of_tsc(vmi: VMI) -> bool:
    """Whether the guest wants to be told when its time stamp counter changes, as by a migration."""
    features = vmi.spec.domain.features
    hyperv = features and features.hyperv
    return bool(hyperv and hyperv.reenlightenment and hyperv.reenlightenment.enabled)


def reboot_policy(root: Element, vmi: VMI) -> None:
    """What a reboot by the guest does; libvirt restarts it in place by default."""
    action = {"Terminate": "destroy", "Reboot": "restart"}.get(vmi.spec.domain.reboot_policy)
    if action:
        add(root, "on_reboot", action)
