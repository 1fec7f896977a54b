"""PNG from the pixmaps that hypervisors take of a screen."""

from __future__ import annotations

import re
import struct
import zlib

from virtfleet.launcher.failure import Failure

_PNG = b"\x89PNG\r\n\x1a\n"
# Magic number, width, height, largest value; comments may stand between them.
_PIXMAP = re.compile(rb"P6(?:\s+#[^\n]*)*\s+(\d+)(?:\s+#[^\n]*)*\s+(\d+)(?:\s+#[^\n]*)*\s+255\s", re.S)


def png(picture: bytes) -> bytes:
    """The picture as PNG: a binary pixmap is converted, a PNG stays what it is."""
    if picture.startswith(_PNG):
        return picture
    header = _PIXMAP.match(picture)
    if not header:
        raise Failure("the hypervisor sent a picture in a format that is not known")
    width, height = int(header[1]), int(header[2])
    row = 3 * width
    pixels = memoryview(picture)[header.end() :]
    # Each row begins with the number of its filter; 0 is none.
    lines = b"".join(b"\0" + bytes(pixels[y * row : (y + 1) * row]) for y in range(height))
    size = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _PNG + _chunk(b"IHDR", size) + _chunk(b"IDAT", zlib.compress(lines, 1)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
