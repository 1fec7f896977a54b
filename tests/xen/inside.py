"""What is tried inside of the dom0, each with a line of JSON at its end: `python -m xen.inside WHAT ...`.

`define DIRECTORY` has libvirt define every document there and translate it into Xen's own configuration. `same FILES`
takes the trials that guests of all hypervisors are put to, with a PVH guest. `check` is `virtfleet hypervisors check`:
a guest with a BIOS that boots from its disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import libvirt
import msgspec

from virtfleet.hypervisors import registry
from virtfleet.launcher.alone import standalone
from virtfleet.launcher.alone.check import check
from virtfleet.work import commands
from vm import guests, same

XEN = registry.get("xen")
VMM = "xen-qemu-system-i386"


def define(directory: Path) -> dict[str, str]:
    """What libvirt says against each document, by its name."""
    connection, against = libvirt.open("xen:///system"), {}
    documents = sorted(directory.glob("*.xml"))
    assert documents, f"{directory} has no documents"
    for file in documents:
        try:
            domain = connection.defineXMLFlags(file.read_text(), libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            try:
                connection.domainXMLToNative("xen-xl", domain.XMLDesc())
            finally:
                domain.undefine()
        except libvirt.libvirtError as error:
            against[file.stem] = str(error)
    return against


def place(files: Path) -> same.Place:
    return same.Place(image=files / "guest.qcow2", boot=files)


async def tried(files: Path) -> dict[str, Any]:
    report = await same.try_all(XEN, place(files))
    version = (await commands.run("xl", "info", "xen_version")).strip()
    report.versions = f"Xen {version}, libvirt {same.dotted(libvirt.getVersion())}"
    return dict(msgspec.to_builtins(report))


async def checked() -> dict[str, Any]:
    """The steps, and the memory of the process that is the guest's PC, in KiB."""
    steps, resident = {}, 0
    async for step in check(XEN):
        steps[step.name] = step.trouble
        resident = max(resident, *_resident(VMM), 0)
    return {"steps": steps, "resident": resident}


def _resident(program: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "exe")).name == program:
                found.append(int((process / "status").read_text().partition("VmRSS:")[2].split()[0]))
    return found


if __name__ == "__main__":
    guests.PATIENCE = 300.0  # a guest of a machine that is emulated itself
    guests.POLL = standalone._RETRY = 0.5  # what is asked more often takes the machine's time from the guest
    what, *arguments = sys.argv[1:]
    if what == "define":
        answer: dict[str, Any] = define(Path(arguments[0]))
    elif what == "same":
        answer = asyncio.run(tried(Path(arguments[0])))
    else:
        answer = asyncio.run(checked())
    sys.stdout.write(json.dumps(answer) + "\n")
