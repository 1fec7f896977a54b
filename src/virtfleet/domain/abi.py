"""The machine as a guest knows it, and what of a record of it holds for a VMI now. Pure.

A guest is installed on a machine: its type, its firmware, the places of its devices, their hardware addresses. So they
are recorded from the running domain and kept when the VM starts again, wherever that is. What the spec says explicitly
goes before the record. A record is read from an object, so nothing in it is believed: what is not well formed is not
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from virtfleet.api.addresses import mac_address
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.api.vmistatus import GuestABI, GuestCPU, GuestDevice

MOST_DEVICES: Final = 256
MOST_FEATURES: Final = 256

_INTERFACE, _DISK = "interface/", "disk/"
# Machine types without a version, and what those with one begin with.
_ALIASES: Final = {"q35": "pc-q35", "pc": "pc-i440fx", "virt": "virt", "s390-ccw-virtio": "s390-ccw-virtio"}
_MACHINE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_VERSION = re.compile(r"-[a-z]*\d[\d.]*")
_FILE = re.compile(r"/[\w+-][\w.+-]*(/[\w+-][\w.+-]*){0,15}")
_NAME = re.compile(r"[a-z]{1,16}/[a-z0-9:.-]{0,64}/[\w.-]{1,64}", re.ASCII)
_ADDRESS = re.compile(r"[\da-f]{4}:[\da-f]{2}:[01][\da-f]\.[0-7]", re.ASCII)
_MAC = re.compile(r"[\da-f][02468ace](:[\da-f]{2}){5}", re.ASCII)
_TARGET = re.compile(r"[a-z]{3,5}")
_FEATURE = re.compile(r"-?[\w.][\w.-]{0,63}", re.ASCII)


def checked(abi: GuestABI | None) -> GuestABI:
    """What is well formed of a record. No two devices have the same name or place."""
    if abi is None:
        return GuestABI()
    whole = bool(_FILE.fullmatch(abi.loader)) and bool(not abi.variables or _FILE.fullmatch(abi.variables))
    cpu = abi.cpu if abi.cpu and _FEATURE.fullmatch(abi.cpu.model) else None
    features = [feature for feature in (cpu.features if cpu else ()) if _FEATURE.fullmatch(feature)]
    return GuestABI(
        machine=_if(_MACHINE, abi.machine),
        loader=abi.loader if whole else "",
        variables=abi.variables if whole else "",
        secure_boot=abi.secure_boot and whole,
        devices=list(_devices(abi.devices[:MOST_DEVICES])),
        cpu=GuestCPU(cpu.model, features[:MOST_FEATURES]) if cpu else None,
    )


def _devices(devices: list[GuestDevice]) -> Iterator[GuestDevice]:
    taken: set[str] = set()
    for device in devices:
        if device.name in taken or not _NAME.fullmatch(device.name):
            continue
        address, mac, target = (
            text if pattern.fullmatch(text) and text not in taken else ""
            for pattern, text in ((_ADDRESS, device.address), (_MAC, device.mac), (_TARGET, device.target))
        )
        taken |= {device.name, address, mac, target}
        yield GuestDevice(device.name, address, mac, target)


def written(abi: GuestABI) -> dict[str, Any]:
    """As it is written: with every field, so that a patch leaves nothing of before. The CPU is that of one run."""
    return {
        "machine": abi.machine,
        "loader": abi.loader,
        "variables": abi.variables,
        "secureBoot": abi.secure_boot,
        "devices": msgspec.to_builtins(abi.devices),
    }


def _if(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""


def holds(recorded: str, asked: str) -> bool:
    """Whether a machine type is the one that is asked for, or a version of it."""
    alias = _ALIASES.get(asked)
    versioned = alias is not None and recorded.startswith(alias) and _VERSION.fullmatch(recorded[len(alias) :])
    return bool(recorded) and (recorded == asked or bool(versioned))


def machine(vmi: VMI) -> str:
    """The machine type that the VM starts with: the version that it had where the spec leaves that open."""
    asked = vmi.spec.domain.machine.type if vmi.spec.domain.machine else ""
    recorded = vmi.status.guest_abi.machine if vmi.status.guest_abi else ""
    return recorded if holds(_if(_MACHINE, recorded), asked) else asked


def mac(vmi: VMI, interface: str) -> str:
    """The hardware address of an interface whose spec names none: that which it had, else one that stays the VMI's."""
    return recorded_mac(vmi, interface) or mac_address(vmi.metadata.uid, interface)


def recorded_mac(vmi: VMI, interface: str) -> str:
    """The hardware address that an interface had; "" for one that the guest has not had."""
    return next((d.mac for d in _named(vmi, _INTERFACE) if d.name.endswith(f"/{interface}")), "")


def targets(vmi: VMI) -> dict[str, str]:
    """The names that disks had on their buses."""
    return {device.name.rpartition("/")[2]: device.target for device in _named(vmi, _DISK) if device.target}


def _named(vmi: VMI, kind: str) -> list[GuestDevice]:
    return [device for device in checked(vmi.status.guest_abi).devices if device.name.startswith(kind)]
