"""What an image is, by its first bytes, and whether a disk may be made of it.

Images are strangers'. What a format can do beyond holding a disk (lie on another file, keep its data in one, be
encrypted) is refused before any program that knows the format opens the image.
"""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = 512
"""Bytes by which an image is known."""
RAW, QCOW2 = "raw", "qcow2"
_QCOW2: Final = b"QFI\xfb"
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_OTHERS: Final = {
    b"KDMV": "VMDK",
    b"# Disk DescriptorFile": "VMDK",
    b"conectix": "VHD",
    b"vhdxfile": "VHDX",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"LUKS\xba\xbe": "LUKS",
    b"QED\x00": "QED",
}
_VDI, _VDI_AT = b"\x7f\x10\xda\xbe", 64
_V3_HEAD: Final = ">4sIQIIQI"
_INCOMPATIBLE_AT: Final = 72
# Features that say nothing of another file: not closed, found broken, another compression, extended entries.
_HARMLESS: Final = 0b11011


class Hopeless(Exception):
    """What can never become the disk that is asked for; the message is for its owner."""


def compression(head: bytes) -> str:
    """How a stream is packed: gzip, xz or not at all."""
    return "gzip" if head.startswith(_GZIP) else "xz" if head.startswith(_XZ) else ""


def kind(head: bytes) -> str:
    """The format of an image that is not packed."""
    if head.startswith(_QCOW2):
        return QCOW2
    known = next((name for start, name in _OTHERS.items() if head.startswith(start)), "")
    if other := "VDI" if head.startswith(_VDI, _VDI_AT) else known:
        raise Hopeless(
            f"the image is of format {other}; convert it to qcow2 or raw first, packed with gzip or xz at most"
        )
    return RAW


def disk_size(head: bytes) -> int:
    """The size of the disk in a qcow2 image, if it stands alone."""
    try:
        _, version, backing, _, _, size, encryption = struct.unpack_from(_V3_HEAD, head)
        features = struct.unpack_from(">Q", head, _INCOMPATIBLE_AT)[0] if version > 2 else 0
    except struct.error:
        raise Hopeless("the image ends within its own header; replace it") from None
    if version not in (2, 3):
        raise Hopeless(f"the image is of version {version} of qcow2; convert it to version 3")
    if backing or features & ~_HARMLESS:
        raise Hopeless(
            "the image refers to another file or needs what is not supported; convert it with qemu-img first"
        )
    if encryption:
        raise Hopeless("the image is encrypted; convert it with qemu-img first")
    return int(size)


def check_size(size: int, most: int) -> None:
    if size > most:
        raise Hopeless(f"the disk has {size} bytes and the claim has room for {most}; ask for more storage")
