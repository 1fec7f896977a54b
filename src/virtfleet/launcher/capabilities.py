"""What libvirt found out about the emulators of this node, handed from one launcher to the next.

Each libvirt daemon that finds no such files asks every emulator what it can do when the first domain is defined, which
takes over a second. libvirt itself checks whether they still fit; whoever prepares a launcher's directories puts them
there before the first `Sync`, and keeps what is new afterwards.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from virtfleet.domain import paths

DIRECTORY = f"{paths.PRIVATE}/libvirt/qemu/cache/capabilities"


def give(kept: Path, directory: Path, user: int) -> None:
    """Put what was kept into a launcher's directory, as its user: libvirt takes a file it cannot read for an error."""
    for path in (*reversed(directory.parents[:4]), directory):
        if not path.exists():
            path.mkdir()
            os.chown(path, user, user)
    if kept.is_dir():
        for file in kept.glob("*.xml"):
            copy = directory / file.name
            shutil.copyfile(file, copy)
            os.chown(copy, user, user)


def keep(directory: Path, kept: Path) -> None:
    """Keep what a launcher's libvirt found out. Files of one name have one content."""
    for file in directory.glob("*.xml"):
        if not (kept / file.name).exists():
            kept.mkdir(parents=True, exist_ok=True)
            temporary = kept / f".{file.name}.{os.getpid()}"
            shutil.copyfile(file, temporary)
            temporary.replace(kept / file.name)
