"""Writes ISO 9660 images, as a short-lived child: `python -m virtfleet.launcher.storage.iso < requests.json`.

The library that does it would stay in the launcher's memory for as long as the VM lives.

The same files make the same image, byte by byte: a guest that moves to another node, where it is made anew, may have it
mounted.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

_BLOCK: Final = 4096  # of disks with large sectors
_WRITTEN: Final = 1_600_000_000.0  # what the library takes for now


class Image(msgspec.Struct):
    """An image to write: its files by path, either their content or where to read it."""

    output: str
    label: str
    contents: dict[str, bytes] = {}
    sources: dict[str, str] = {}


def write(image: Image) -> None:
    """Write the image whole or not at all."""
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=4, joliet=3, rock_ridge="1.09", vol_ident=image.label[:32])
    made: set[PurePosixPath] = set()
    for name in [*image.contents, *image.sources]:
        path = PurePosixPath("/", name)
        for directory in reversed(path.parents[:-1]):
            if directory not in made:
                made.add(directory)
                iso.add_directory(str(directory), rr_name=directory.name, joliet_path=str(directory))
        content = image.contents.get(name)
        data = Path(image.sources[name]).read_bytes() if content is None else content
        iso.add_fp(io.BytesIO(data), len(data), str(path), rr_name=path.name, joliet_path=str(path))
    os.makedirs(os.path.dirname(image.output), exist_ok=True)
    iso.write(f"{image.output}.new")
    iso.close()
    os.truncate(f"{image.output}.new", -(-os.path.getsize(f"{image.output}.new") // _BLOCK) * _BLOCK)
    os.replace(f"{image.output}.new", image.output)


def main() -> None:
    os.umask(0o077)
    os.environ["TZ"] = "UTC"
    time.tzset()
    time.time = lambda: _WRITTEN
    for image in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Image]):
        write(image)


if __name__ == "__main__":
    main()
