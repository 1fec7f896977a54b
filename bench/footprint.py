"""Memory of what runs beside a guest, process by process, against what the hypervisor's descriptor plans for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.report import Figure
from virtfleet.api.quantity import Quantity
from virtfleet.hypervisors.base import Descriptor
from virtfleet.launcher.alone.standalone import Standalone

_MIB = 1024  # in KiB
_ROLES = {
    "monitor": "reaper",
    "launcher": "launcher",
    "log_daemon": "log daemon",
    "daemon": "libvirt daemon",
    "vmm": "VMM without its guest's memory",
    "emulation": "translated code",
}
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (?P<access>\S+)")


def figures(seen: Mapping[str, int], descriptor: Descriptor) -> list[Figure]:
    """A figure for each overhead that was seen; one that is planned too small is a problem of the run."""
    found = []
    for role, title in _ROLES.items():
        if role not in seen:
            continue
        planned = Quantity.parse(getattr(descriptor.overheads, role))
        problem = "BELOW what is seen" if planned.value() < seen[role] * 1024 else ""
        name = f"{descriptor.name}: {title}, resident"
        found.append(Figure(name, seen[role] / _MIB, "MiB", aim=f"planned {planned}", problem=problem))
    return found


def resident(vm: Standalone, descriptor: Descriptor, guest_kib: int) -> dict[str, int]:
    """KiB by role, which is the name of the overhead. Roles that no process plays are left out."""
    found: dict[str, int] = {}
    for process in _processes(vm):
        try:
            role = _role(process, descriptor)
            if not role:
                continue
            total = int((process / "status").read_text().partition("VmRSS:")[2].split()[0])
            if role == "vmm":
                guest, code = _mappings(process, guest_kib)
                total -= guest
                if Quantity.parse(descriptor.overheads.emulation).value():
                    found["emulation"] = found.get("emulation", 0) + code
                    total -= code
            found[role] = found.get(role, 0) + total
        except OSError:  # it has ended
            continue
    return {role: kib for role, kib in found.items() if kib}


def _processes(vm: Standalone) -> Iterator[Path]:
    """Processes of the sandbox."""
    outside = vm.sandbox.process
    assert outside is not None
    first = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()[0]
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns/pid") == namespace:
                yield entry
        except OSError:
            continue


def _role(process: Path, descriptor: Descriptor) -> str:
    words = (process / "cmdline").read_text().split("\0")
    command = os.path.basename(words[0])
    if command == "catatonit":
        return "monitor"
    if "virtfleet.launcher" in words:
        return "launcher"
    if command == "virtlogd":
        return "log_daemon"
    if command in ("libvirtd", descriptor.daemon):
        return "daemon"
    return "vmm" if command.startswith(descriptor.processes) else ""


def _mappings(process: Path, guest_kib: int) -> tuple[int, int]:
    """KiB of the guest's memory, and of code that an emulator translated: the mapping that can be written and run."""
    guest = code = size = 0
    access = ""
    for line in (process / "smaps").read_text().splitlines():
        if match := _MAPPING.match(line):
            access = match["access"]
        elif line.startswith("Size:"):
            size = int(line.split()[1])
        elif line.startswith("Rss:"):
            resident = int(line.split()[1])
            if access.startswith("rwx"):
                code += resident
            elif size > guest_kib - _MIB:  # emulated CPUs have a little less; the kernel may have put a neighbour to it
                guest += min(resident, guest_kib)
    return guest, code
