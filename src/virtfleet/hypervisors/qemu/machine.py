"""Features, security, memory and CPUs of a QEMU machine; and memory for one that runs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import names, traits
from virtfleet.api.domainspec import FeatureHyperv
from virtfleet.api.meta import FeatureState
from virtfleet.api.quantity import Quantity
from virtfleet.domain import common
from virtfleet.domain.xml import add, child, on_off, yes_no
from virtfleet.hypervisors.qemu.draft import Draft

_SEV_NO_DEBUG, _SEV_ENCRYPTED_STATE = 1 << 0, 1 << 2
_BLOCK_KIB = 2048
_SNP_SMT, _SNP_RESERVED = 1 << 16, 1 << 17  # the reserved bit must be set

# Enlightenments that are only on or off; libvirt and the API give them the same names.
_HYPERV_SWITCHES = (
    "relaxed", "vapic", "vpindex", "runtime", "synic", "reset", "frequencies", "reenlightenment", "ipi", "evmcs",
)  # fmt: skip


def features(draft: Draft) -> None:
    element = add(draft.root, "features")
    wanted = draft.vmi.spec.domain.features
    if not wanted:
        return
    if not wanted.acpi or wanted.acpi.enabled is not False:
        add(element, "acpi")
    for name in ("smm", "apic"):
        if (state := getattr(wanted, name)) and state.enabled is not False:
            add(element, name)
    if wanted.hyperv:
        _hyperv(add(element, "hyperv"), wanted.hyperv)
    elif wanted.hyperv_passthrough and wanted.hyperv_passthrough.enabled:
        add(element, "hyperv", mode="passthrough")
    if wanted.kvm:
        add(add(element, "kvm"), "hidden", state=on_off(wanted.kvm.hidden, False))
    if wanted.pvspinlock:
        add(element, "pvspinlock", state=on_off(wanted.pvspinlock.enabled))
    if traits.tdx(draft.vmi):
        add(element, "pmu", state="off")
    if draft.architecture.pc:
        add(element, "vmport", state="off")


def _hyperv(element: Element, wanted: FeatureHyperv) -> None:
    for name in _HYPERV_SWITCHES:
        _switch(element, name, getattr(wanted, name))
    if wanted.spinlocks:
        state = on_off(wanted.spinlocks.enabled)
        add(element, "spinlocks", state=state, retries=wanted.spinlocks.spinlocks)
    if wanted.vendorid:
        add(element, "vendor_id", state=on_off(wanted.vendorid.enabled), value=wanted.vendorid.vendorid)
    if wanted.synictimer:
        timer = add(element, "stimer", state=on_off(wanted.synictimer.enabled))
        _switch(timer, "direct", wanted.synictimer.direct)
    if wanted.tlbflush:
        flush = add(element, "tlbflush", state=on_off(wanted.tlbflush.enabled))
        _switch(flush, "direct", wanted.tlbflush.direct)
        _switch(flush, "extended", wanted.tlbflush.extended)


def _switch(element: Element, tag: str, state: FeatureState | None) -> None:
    if state:
        add(element, tag, state=on_off(state.enabled))


def launch_security(draft: Draft) -> None:
    wanted = draft.vmi.spec.domain.launch_security
    if not wanted or draft.architecture.name != "amd64":
        return  # s390x: an IOMMU for every device is all that Secure Execution needs
    if wanted.sev:
        encrypted = wanted.sev.policy is not None and wanted.sev.policy.encrypted_state
        element = add(draft.root, "launchSecurity", type="sev")
        add(element, "policy", hex(_SEV_NO_DEBUG | (_SEV_ENCRYPTED_STATE if encrypted else 0)))
        if wanted.sev.dh_cert:
            add(element, "dhCert", wanted.sev.dh_cert)
        if wanted.sev.session:
            add(element, "session", wanted.sev.session)
    elif wanted.snp:
        element = add(draft.root, "launchSecurity", type="sev-snp")
        add(element, "policy", hex(_SNP_SMT | _SNP_RESERVED))
    elif wanted.tdx:
        element = add(draft.root, "launchSecurity", type="tdx")
        socket = draft.vmi.metadata.annotations.get(names.QGS_SOCKET_PATH)
        add(element, "quoteGenerationService", path=socket)


def memory(draft: Draft) -> None:
    common.memory(draft.root, draft.vmi)
    wanted = draft.vmi.spec.domain.memory
    if not wanted or wanted.max_guest is None:
        return
    largest = Quantity.parse(wanted.max_guest)
    if largest != traits.memory(draft.vmi):
        add(draft.root, "maxMemory", traits.whole_bytes(largest), unit="b", slots=0)


def memory_backing(draft: Draft) -> None:
    hugepages, shared = traits.hugepages(draft.vmi), traits.shares_memory(draft.vmi)
    if not hugepages and not shared:
        return
    backing = add(draft.root, "memoryBacking")
    if hugepages:
        add(backing, "hugepages")
    if _memfd(draft):
        add(backing, "source", type="memfd")
    if shared:
        add(backing, "access", mode="shared")
    if not hugepages and traits.memory_is_there(draft.vmi):
        add(backing, "allocation", mode="immediate")


def _memfd(draft: Draft) -> bool:
    numa = draft.architecture.name != "s390x"  # which memory in a memfd needs
    wanted = draft.vmi.metadata.annotations.get(names.MEMFD) != "false"
    return numa and (traits.shares_memory(draft.vmi) or (traits.hugepages(draft.vmi) and wanted))


def cpu(draft: Draft) -> None:
    wanted = draft.vmi.spec.domain.cpu
    topology = draft.topology
    most = wanted.max_sockets if wanted and draft.architecture.name != "arm64" else None
    if most:
        topology = topology._replace(sockets=most)
        vcpus = add(draft.root, "vcpus")
        for number in range(topology.vcpus):
            enabled = yes_no(number < draft.topology.vcpus)
            hotpluggable = yes_no(number >= topology.cores * topology.threads)
            add(vcpus, "vcpu", id=number, enabled=enabled, hotpluggable=hotpluggable)
    common.vcpus(draft.root, topology.vcpus)

    element = add(draft.root, "cpu")
    model = wanted.model if wanted else ""
    if model in ("", "host-model", "host-passthrough"):
        element.set("mode", model or "host-model")
    else:
        element.set("mode", "custom")
        add(element, "model", model)
    add(element, "topology", sockets=topology.sockets, cores=topology.cores, threads=topology.threads)
    if wanted:
        for feature in wanted.features:
            add(element, "feature", name=feature.name, policy=feature.policy)
        named = model not in ("host-model", "host-passthrough")
        if draft.architecture.pc and named and all(f.name != "mpx" for f in wanted.features):
            add(element, "feature", name="mpx", policy="disable")  # libvirt's models may have it, newer CPUs lack it
    if _memfd(draft) and not (wanted and wanted.numa):
        kib = traits.memory(draft.vmi).value() // 1024
        cell = add(add(element, "numa"), "cell", id=0, cpus=f"0-{topology.vcpus - 1}", unit="KiB")
        cell.set("memory", str(kib))


def more_memory(running: Element, memory: int) -> Element | None:
    """The device with which the guest has `memory` bytes; None where it was asked to have them.

    It is one virtio-mem device, which comes with the first memory that is added. Until then a VM has nothing of it but
    the number up to which it may grow, so that it is as light as any other.
    """
    largest, there = _kib(running.find("maxMemory")), running.find("devices/memory[@model='virtio-mem']")
    sizes = sum(_kib(size) for size in running.iterfind("devices/memory/target/size"))
    boot = _kib(running.find("memory")) - sizes
    more = min(memory >> 10, largest) - boot
    if there is not None:
        requested = child(child(there, "target"), "requested")
        if _kib(requested) == more:
            return None
        requested.text = str(more)
        return there
    if more <= 0:
        return None
    page = running.find("memoryBacking/hugepages/page")
    block = max(_BLOCK_KIB, int(page.get("size", "0"))) if page is not None else _BLOCK_KIB
    element = Element("memory", {"model": "virtio-mem"})
    target = add(element, "target")
    add(target, "size", largest - boot, unit="KiB")
    add(target, "node", 0)
    add(target, "block", block, unit="KiB")
    add(target, "requested", more, unit="KiB")
    add(element, "alias", name="ua-more-memory")
    return element


def _kib(amount: Element | None) -> int:
    """Of an element of a running domain, in which libvirt counts in KiB."""
    return int(amount.text or 0) if amount is not None else 0
