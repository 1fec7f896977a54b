"""What libvirt found out about the emulators in a launcher image, for launchers that need not find it out again.

Each libvirt daemon that finds no such files asks every emulator what it can do when the first domain is defined, which
takes over a second. The node's own launcher image finds it out once, before any guest runs beside it (`nodefacts`), and
virt-handler tells each launcher of that image, which writes the files itself. What a launcher has written is never
handed on: a guest may run beside it. libvirt itself checks whether the files still fit.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from virtfleet.domain import paths

DIRECTORY = f"{paths.PRIVATE}/libvirt/qemu/cache/capabilities"
_KEPT = "emulators"
_IMAGES = 8  # of which it is kept; a node seldom sees another one
_MOST = 1 << 20  # bytes that are worth sending
_NAME = re.compile(r"[0-9a-f]{64}\.xml")

Files = dict[str, bytes]
"""Content by name, compressed: from 400 KiB to 30, which every launcher is sent."""


def found() -> Files:
    """What libvirt has found out here."""
    return {file.name: zlib.compress(file.read_bytes()) for file in Path(DIRECTORY).glob("*.xml")}


def put(files: Files) -> None:
    """Let the libvirt that runs here know what another one found out, before the first domain is defined."""
    with suppress(OSError):  # libvirt can find it out by itself
        Path(DIRECTORY).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if _NAME.fullmatch(name):
                Path(DIRECTORY, name).write_bytes(zlib.decompress(content))


def save(directory: Path, image: str, files: Files) -> None:
    """Keep what was found out in an image, in a directory that only the node's own programs can write to."""
    kept = _kept(directory, image)
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = kept.with_name(f".{kept.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.msgpack.encode(files))
    fresh.replace(kept)
    for old in sorted(kept.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-_IMAGES]:
        old.unlink()


def load(directory: Path, image: str) -> Files:
    """What was found out in an image; nothing where that is not known, or too much to tell."""
    with suppress(OSError, msgspec.MsgspecError):
        kept = _kept(directory, image)
        if kept.stat().st_size <= _MOST:
            return msgspec.msgpack.decode(kept.read_bytes(), type=Files)
    return {}


def _kept(directory: Path, image: str) -> Path:
    import hashlib  # a library of 1 MiB, and launchers only put

    return directory / _KEPT / hashlib.sha256(image.encode()).hexdigest()[:16]
