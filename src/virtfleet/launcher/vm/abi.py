"""The machine as its guest knows it: read from the running domain, and kept in a document that is made anew. Pure.

Devices go by what stays theirs: kind, model, and the name that the VMI has for them, else their number. A device that
has become another kind of thing so has no record, and a place that fits it is found by libvirt, among those that are
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.api.vmistatus import GuestABI, GuestCPU
from virtfleet.domain import abi
from virtfleet.domain.context import Host
from virtfleet.domain.errors import DomainError
from virtfleet.domain.interfaces import pci_address
from virtfleet.domain.xml import add, attribute, child
from virtfleet.hypervisors.base import own_alias
from virtfleet.protocol import messages as m

_PCI = "address[@type='pci']"
_CONTROLLER = "controller/pci:"


def record(domain: Element) -> m.GuestABI:
    """What the guest of a running domain relies on."""
    entries = [_entry(name, device) for name, device in _named(domain.iterfind("devices/*"))]
    return m.GuestABI(
        machine=attribute(domain, "os/type", "machine"),
        loader=domain.findtext("os/loader", ""),
        variables=attribute(domain, "os/nvram", "template"),
        secure_boot=attribute(domain, "os/loader", "secure") == "yes",
        devices=[entry for entry in entries if entry.address or entry.mac or entry.target],
        cpu_model=domain.findtext("cpu[@mode='custom']/model", ""),
        cpu_features=[
            ("-" if feature.get("policy") in ("disable", "forbid") else "") + feature.get("name", "")
            for feature in domain.iterfind("cpu[@mode='custom']/feature")
        ],
    )


def _entry(name: str, device: Element) -> m.GuestDevice:
    return m.GuestDevice(
        name=name,
        address=_address(device),
        mac=attribute(device, "mac", "address").lower(),
        target=attribute(device, "target", "dev") if device.tag == "disk" else "",
    )


def keep_machine(document: Element, vmi: VMI) -> None:
    """The machine type with the version that the guest had, before the document is fitted to what is here."""
    kind = document.find("os/type")
    if kind is not None and abi.holds(known := abi.checked(vmi.status.guest_abi).machine, kind.get("machine", "")):
        kind.set("machine", known)


def keep_parts(document: Element, vmi: VMI, host: Host) -> None:
    """Everything else that the guest had, in a document that is fitted. Another machine has other places for it."""
    known = abi.checked(vmi.status.guest_abi)
    devices, kind = document.find("devices"), document.find("os/type")
    if devices is None:
        return
    macs = {device.name: device.mac for device in known.devices if device.mac}
    for name, device in _named(devices):
        if device.tag == "interface" and device.find("mac") is None and name in macs:
            add(device, "mac", address=macs[name])
    if kind is not None and known.machine and kind.get("machine") == known.machine:
        _keep_addresses(devices, known)
        _keep_firmware(document, vmi, known, host)
        if known.cpu:
            _keep_cpu(document, known.cpu)


def _keep_addresses(devices: Element, known: GuestABI) -> None:
    """Recorded places for the devices that are still there, but not those that the spec now gives to others.

    The ports that libvirt added stay where they were, even those that nothing sits behind any more: guests count them.
    """
    given = {_slot(_address(device)) for device in devices}
    places = {d.name: d.address for d in known.devices if d.address and _slot(d.address) not in given}
    functions = Counter(map(_slot, places.values()))
    present = dict(_named(devices))
    for name, address in places.items():
        device = present.get(name)
        if device is None and name.startswith(_CONTROLLER):
            model, _, index = name.removeprefix(_CONTROLLER).partition("/")
            device = add(devices, "controller", type="pci", model=model, index=index)
        if device is not None and device.find("address") is None:
            place = pci_address(device, address, name)
            if address.endswith(".0") and functions[_slot(address)] > 1:
                place.set("multifunction", "on")


def _keep_firmware(document: Element, vmi: VMI, known: GuestABI, host: Host) -> None:
    loader, variables = document.find("os/loader"), document.find("os/nvram")
    if loader is None or not known.loader or (loader.get("secure") == "yes") != known.secure_boot:
        return
    here = host.firmware >= {known.loader, *filter(None, [known.variables])}
    firmware = vmi.spec.domain.firmware
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    if here:
        loader.text = known.loader
        if variables is not None and known.variables:
            variables.set("template", known.variables)
    elif efi and efi.persistent:
        raise DomainError(
            f"spec.domain.firmware: this node has no {known.loader}, which the variables of this VM belong to; start "
            "it on a node that has it, or set efi.persistent to false to begin with new variables"
        )


def _keep_cpu(document: Element, known: GuestCPU) -> None:
    """The CPU that a running guest has, where the spec leaves it to the node."""
    cpu = document.find("cpu[@mode='host-model']")
    if cpu is None:
        return
    cpu.set("mode", "custom")
    cpu.set("match", "exact")
    child(cpu, "model").text = known.model
    for feature in cpu.findall("feature"):
        cpu.remove(feature)
    for name in known.features:
        add(cpu, "feature", name=name.removeprefix("-"), policy="disable" if name[0] == "-" else "require")


def _named(devices: Iterable[Element]) -> Iterator[tuple[str, Element]]:
    numbers: Counter[str] = Counter()
    for device in devices:
        model = device.get("model") or attribute(device, "model", "type")
        if device.tag == "controller":
            model = f"{device.get('type')}:{model}"
        elif not model:
            model = attribute(device, "target", "bus") or device.get("type", "")
        kind = f"{device.tag}/{model}"
        name = own_alias(device) or device.get("index", "")
        if not name and device.tag == "filesystem":
            name = attribute(device, "target", "dir")
        if not name:
            name = str(numbers[kind])
            numbers[kind] += 1
        yield f"{kind}/{name}", device


def _address(device: Element) -> str:
    address = device.find(_PCI)
    if address is None:
        return ""
    domain, bus, slot, function = (int(address.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _slot(address: str) -> str:
    return address.rpartition(".")[0]
