"""Names of disks inside the guest: vda, vdb, sda and so on.

A name that the VMI's status already gives to a volume stays its own, so that adding and removing disks, while the VM
runs or between two runs, renames none of the others.
"""

from __future__ import annotations

from virtfleet.api.traits import bus
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi

_PREFIXES = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}


class TargetNames:
    """Hands out names, disk by disk, in the order of the spec."""

    def __init__(self, vmi: VMI) -> None:
        seen = {status.name: status.target for status in vmi.status.volume_status if status.target}
        known = {**abi.targets(vmi), **seen}
        disks = {disk.name: _PREFIXES.get(bus(disk), "") for disk in vmi.spec.domain.devices.disks}
        self._given = {n: known[n] for n, prefix in disks.items() if n in known and known[n].startswith(prefix)}
        self._taken = {(disks[name], target) for name, target in self._given.items()}

    def name(self, disk: str, on_bus: str) -> tuple[str, int]:
        """The target name of a disk, and its position on the bus."""
        prefix = _PREFIXES.get(on_bus, "")
        if given := self._given.get(disk):
            return given, _index(given.removeprefix(prefix))
        index = 0
        while (prefix, target := prefix + _letters(index)) in self._taken:
            index += 1
        self._taken.add((prefix, target))
        return target, index


def _letters(index: int) -> str:
    """a to z, then aa, ab and so on."""
    letters = ""
    while index >= 0:
        letters = chr(ord("a") + index % 26) + letters
        index = index // 26 - 1
    return letters


def _index(letters: str) -> int:
    index = 0
    for letter in letters:
        index = index * 26 + ord(letter) - ord("a") + 1
    return index - 1
