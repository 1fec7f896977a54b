"""What libvirt found out about the emulators of a launcher image, for launchers that need not find it out again.

Each libvirt daemon that finds no such files asks every emulator what it can do when the first domain is defined, which
takes over a second. The node's own launcher image finds it out once, before any guest runs beside it (`nodefacts`), and
virt-handler tells every launcher, which writes the files itself if it has the very same programs. What a launcher has
written is never handed on: a guest may run beside it.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import msgspec

from virtfleet.domain import paths
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.libvirtd.daemons import monolithic_driver
from virtfleet.launcher.node import keep

_KEPT = "emulators"
_SETS = 4  # of programs: a node may have been of several pools
_MOST = 1 << 20  # bytes that are worth sending
_NAME = re.compile(r"[0-9a-f]{64}\.xml")

Files = dict[str, bytes]
"""Content by name, compressed: 30 KiB instead of 400."""
Known = dict[str, Files]
"""By programs."""


def directory(hypervisor: Hypervisor) -> Path:
    """Where its libvirt keeps what it finds out."""
    assert hypervisor.descriptor.learned is not None
    return Path(paths.PRIVATE, "libvirt", hypervisor.descriptor.learned.directory)


def programs(hypervisor: Hypervisor) -> str:
    """The programs of an image, told apart by all that may not be the same in another build of them."""
    learned = hypervisor.descriptor.learned
    files = {path for pattern in (learned.programs if learned else ()) for path in Path("/usr").glob(pattern)}
    if driver := monolithic_driver(hypervisor):
        files.add(driver)
    states = [(path, path.stat()) for path in sorted(files)]
    return " ".join([os.uname().release, *(f"{p} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}" for p, s in states)])


def learned(hypervisor: Hypervisor) -> Files:
    """What libvirt has found out here."""
    return {file.name: zlib.compress(file.read_bytes()) for file in directory(hypervisor).glob("*.xml")}


def put(hypervisor: Hypervisor, known: Known) -> None:
    """Let the libvirt that runs here know what another one found out, before the first domain is defined."""
    if not hypervisor.descriptor.learned:
        return
    place = directory(hypervisor)
    for name, content in known.get(programs(hypervisor), {}).items():
        with suppress(OSError):  # libvirt can find it out by itself
            place.mkdir(parents=True, exist_ok=True)
            if _NAME.fullmatch(name):
                (place / name).write_bytes(zlib.decompress(content))


def save(directory: Path, of: str, files: Files) -> None:
    """Keep what was found out, in a directory that only the node's own programs can write to."""
    others = ((known, theirs) for known, theirs in load(directory).items() if known != of)
    keep(directory / _KEPT, msgspec.msgpack.encode(dict(islice(chain([(of, files)], others), _SETS))))


def load(directory: Path) -> Known:
    """What was found out; nothing where that is not known, or too much to tell."""
    with suppress(OSError, msgspec.MsgspecError):
        if (directory / _KEPT).stat().st_size <= _MOST:
            return msgspec.msgpack.decode((directory / _KEPT).read_bytes(), type=Known)
    return {}
