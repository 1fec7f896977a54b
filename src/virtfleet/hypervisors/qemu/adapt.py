"""Fit a domain document to the libvirt, QEMU and firmware that are really there.

Documents are built for the newest libvirt, with paths of KubeVirt's images. What an older libvirt does not know is
taken out or said differently where the VM stays the same; the rest is left for libvirt to refuse.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final
from xml.etree.ElementTree import Element

from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.domain.interfaces import plain_mac
from virtfleet.domain.xml import add, child

# Code that QEMU keeps after translating it. Without a limit of ours it would keep up to 1 GiB of it, beyond any memory
# limit of a Pod; a guest that needs more is only translated again.
TRANSLATED_CODE_MIB = 128

WATCHED: Final = "watched.ram"
"""Memory of which QEMU sees every change."""
_MIB = 1 << 20
_ODD = 8192  # bytes that a memory lacks, so that it is not of whole groups of 64 pages; QEMU wants a multiple of this
_NAMESPACE = "{http://libvirt.org/schemas/domain/qemu/1.0}"
ARGUMENT: Final = f"{_NAMESPACE}arg"
_SLOTS = 16  # for memory that is added later, where libvirt counts slots

# Firmware under other names: (name in the document, secure boot) -> names elsewhere, best first. Code that is built for
# secure boot needs system management mode, so VMs without it get the plain build.
_ELSEWHERE: Final = {
    ("OVMF_CODE.secboot.fd", "yes"): ("OVMF_CODE_4M.secboot.fd", "OVMF_CODE.secboot.fd"),
    ("OVMF_CODE.secboot.fd", "no"): ("OVMF_CODE_4M.fd", "OVMF_CODE.fd"),
    ("OVMF_VARS.secboot.fd", "yes"): ("OVMF_VARS_4M.ms.fd", "OVMF_VARS.ms.fd"),
    ("OVMF_VARS.fd", "no"): ("OVMF_VARS_4M.fd", "OVMF_VARS.fd"),
    ("AAVMF_CODE.fd", "no"): ("AAVMF_CODE.no-secboot.fd", "AAVMF_CODE.fd"),
    ("AAVMF_VARS.fd", "no"): ("AAVMF_VARS.fd",),
}
_FIRMWARE_DIRS: Final = ("/usr/share/OVMF", "/usr/share/AAVMF", "/usr/share/edk2/ovmf", "/usr/share/edk2/x64")


def adapt(domain: Element, context: Context) -> Element:
    """Fit the document, in place."""
    for rule in _ALWAYS:
        rule(domain, context)
    for since, known in _SINCE:
        if context.host.libvirt_version < since:
            known(domain, context)
    return domain


def pass_on(domain: Element, *arguments: str) -> None:
    """Give QEMU arguments for which libvirt has no element."""
    for argument in arguments:
        add(child(domain, f"{_NAMESPACE}commandline"), ARGUMENT, value=argument)


def _strip_notes(domain: Element, context: Context) -> None:
    """Take out what is there for the launcher only, or what libvirt overlooks but its schema does not allow."""
    for disk in domain.iterfind("devices/disk"):
        for tag in ("capacity", "filesystemOverhead"):
            for note in disk.findall(tag):
                disk.remove(note)
    for filesystem in domain.iterfind("devices/filesystem[@accessMode]"):
        filesystem.set("accessmode", filesystem.attrib.pop("accessMode"))
    for device in domain.iterfind("devices/hostdev[@type='pci']"):
        device.set("mode", "subsystem")
    for mac in domain.iterfind("devices/interface/mac"):
        mac.set("address", plain_mac(mac.get("address", "")))


def _disks(domain: Element, context: Context) -> None:
    if domain.find("devices/disk/target[@bus='usb']") is not None:
        for controller in domain.iterfind("devices/controller[@type='usb'][@model='none']"):
            controller.set("model", "qemu-xhci")


def _machine(domain: Element, context: Context) -> None:
    """A machine type is what the guest was installed on: none is ever put in another's place."""
    kind = domain.find("os/type")
    machine = kind.get("machine", "") if kind is not None else ""
    if machine and context.host.machines and machine not in context.host.machines:
        newest = ", ".join(
            alias for alias in ("q35", "pc", "virt", "s390-ccw-virtio") if alias in context.host.machines
        )
        raise DomainError(
            f"spec.domain.machine.type: this node has no machine type {machine!r}; choose one that it has"
            f" ({newest} for its newest), or a node that has this one"
        )


def _firmware(domain: Element, context: Context) -> None:
    loader, variables = domain.find("os/loader"), domain.find("os/nvram")
    if loader is None or loader.text is None:
        return
    secure = loader.get("secure", "no")
    loader.text = _present(loader.text, secure, context.host)
    template = variables.get("template") if variables is not None else None
    if variables is not None and template:
        variables.set("template", _present(template, secure, context.host))


def _present(path: str, secure: str, host: Host) -> str:
    """Where a firmware file really is. One that is nowhere stays, so that libvirt's message names it."""
    if not host.firmware or path in host.firmware:
        return path
    for name in _ELSEWHERE.get((posixpath.basename(path), secure), ()):
        for directory in _FIRMWARE_DIRS:
            if f"{directory}/{name}" in host.firmware:
                return f"{directory}/{name}"
    return path


def _network(domain: Element, context: Context) -> None:
    for interface in domain.iterfind("devices/interface[@type='ethernet']"):
        alias = interface.find("alias")
        tap = context.taps.get((alias.get("name", "") if alias is not None else "").removeprefix("ua-"))
        if tap:
            add(interface, "target", dev=tap, managed="no")
        for driver in interface.iterfind("driver[@name='vhost']"):
            if not context.host.vhost_net:
                driver.set("name", "qemu")


def _emulation(domain: Element, context: Context) -> None:
    if domain.get("type") != "qemu":
        return
    cpu = domain.find("cpu")
    if cpu is not None and cpu.get("mode") == "host-passthrough":
        raise DomainError("spec.domain.cpu.model: host-passthrough needs a hypervisor; CPUs are emulated here")
    features = child(domain, "features")
    for hint in (*features.findall("kvm"), *features.findall("hyperv")):
        features.remove(hint)  # how guests get along with a hypervisor, which QEMU refuses to say without one
    add(add(features, "tcg"), "tb-cache", TRANSLATED_CODE_MIB, unit="MiB")


def _watched_closely(domain: Element, context: Context) -> None:
    """Memory of a size with which QEMU before 9.0 notices all that an emulated CPU writes.

    When it notes what was written, to send that to another node, it goes through memory that is made of whole groups of
    64 pages a group at a time, and then forgets to have its CPUs report again. libvirt knows sizes of whole MiB only.
    """
    memory = domain.findtext("memory")
    if domain.get("type") != "qemu" or not memory:
        return
    if any(domain.find(place) is not None for place in ("maxMemory", "memoryBacking", "cpu/numa")):
        return  # of several parts, or of another kind
    size = -(-int(memory) // _MIB) * _MIB - _ODD
    pass_on(domain, "-object", f"memory-backend-ram,id={WATCHED},size={size}")
    pass_on(domain, "-machine", f"memory-backend={WATCHED}", "-m", f"size={size}B")


def _count_slots(domain: Element, context: Context) -> None:
    """Memory that can grow needs slots and a NUMA cell."""
    largest, memory, cpu = domain.find("maxMemory"), domain.find("memory"), domain.find("cpu")
    if largest is None or memory is None or cpu is None:
        return
    largest.set("slots", str(_SLOTS))
    if cpu.find("numa") is None:
        vcpus = int(domain.findtext("vcpu", "1"))
        cell = add(child(cpu, "numa"), "cell", id=0, cpus=f"0-{vcpus - 1}", unit=memory.get("unit"))
        cell.set("memory", memory.text or "0")


def _one_thread_per_disk(domain: Element, context: Context) -> None:
    """A pool of I/O threads becomes one thread for each disk, in turn."""
    for number, driver in enumerate(domain.iterfind("devices/disk/driver[iothreads]")):
        pool = child(driver, "iothreads")
        driver.set("iothread", str(number % len(pool) + 1))
        driver.remove(pool)


def _plain_tlb_flush(domain: Element, context: Context) -> None:
    for flush in domain.iterfind("features/hyperv/tlbflush"):
        for mode in list(flush):
            flush.remove(mode)


def _tables_by_argument(domain: Element, context: Context) -> None:
    for tables in domain.findall("os/acpi"):
        for table in tables.findall("table[@type='msdm']"):
            pass_on(domain, "-acpitable", f"sig=MSDM,file={table.text}")
            tables.remove(table)
        if not len(tables):
            child(domain, "os").remove(tables)


_Rule = Callable[[Element, Context], None]


def _without(path: str, *attributes: str) -> _Rule:
    """Leave attributes out."""

    def rule(domain: Element, context: Context) -> None:
        for element in domain.iterfind(path):
            for attribute in attributes:
                element.attrib.pop(attribute, None)

    return rule


def _by_default(path: str, attribute: str, value: str) -> _Rule:
    """Say what is meant where nothing is said."""

    def rule(domain: Element, context: Context) -> None:
        for element in domain.iterfind(path):
            element.attrib.setdefault(attribute, value)

    return rule


_ALWAYS: Final[tuple[_Rule, ...]] = (
    _strip_notes,
    _without("devices/disk//source[@dev]", "name"),
    _without("devices/disk//reservations", "migration"),
    _without("devices/filesystem/source[@socket]", "dir"),
    _without("devices/hostdev[@type='pci']/source/address", "type"),
    _by_default("clock", "offset", "utc"),
    _by_default("cpu/feature", "policy", "require"),
    _by_default("devices/disk/driver[@io='native']", "cache", "none"),  # it goes past the page cache, or not at all
    _machine,
    _firmware,
    _disks,
    _network,
    _emulation,
)
# first version of libvirt that understands the document as it is built -> what to do before
_SINCE: Final[tuple[tuple[int, _Rule], ...]] = (
    (9_002_000, _without("os/nvram", "format")),
    (9_005_000, _count_slots),
    (10_000_000, _one_thread_per_disk),
    (10_000_000, _watched_closely),  # which is older than QEMU 9.0
    (10_003_000, _without("devices/hostdev[@type='pci']", "display", "ramfb")),
    (11_000_000, _plain_tlb_flush),
    (11_002_000, _tables_by_argument),
    (11_006_000, _without("devices/disk/blockio", "discard_granularity")),
)
