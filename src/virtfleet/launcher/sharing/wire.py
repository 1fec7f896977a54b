"""FUSE as Linux guests speak it over virtio, version 7.31: numbers and layouts. Pure."""

from __future__ import annotations

import os
import stat
import struct
from enum import IntEnum
from typing import Final

MAJOR, MINOR = 7, 31
ROOT: Final = 1
LARGEST_DATA: Final = 1 << 20
"""Bytes of one read or write."""


class Op(IntEnum):
    """What a guest may ask for. What is not here it is told is not there, and does without."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    LSEEK = 46


UNANSWERED: Final = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)

IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
INIT_IN, INIT_OUT = struct.Struct("<IIII"), struct.Struct("<IIIIHHIIHHI28x")
GETATTR_IN, SETATTR_IN = struct.Struct("<IIQ"), struct.Struct("<II6Q8I")
OPEN_IN, OPEN_OUT = struct.Struct("<II"), struct.Struct("<QII")
CREATE_IN, MKNOD_IN, MKDIR_IN = struct.Struct("<IIII"), struct.Struct("<IIII"), struct.Struct("<II")
RENAME_IN = LINK_IN = FORGET_IN = LSEEK_OUT = struct.Struct("<Q")
READ_IN = WRITE_IN = struct.Struct("<QQIIQII")
WRITE_OUT = struct.Struct("<II")
FSYNC_IN, FALLOCATE_IN, LSEEK_IN = struct.Struct("<QII"), struct.Struct("<QQQII"), struct.Struct("<QQII")
HANDLE_IN = struct.Struct("<Q")
BATCH_FORGET_IN, FORGET_ONE = struct.Struct("<II"), struct.Struct("<QQ")
STATFS_OUT = struct.Struct("<5Q4I24x")
_ATTR, _ENTRY, _VALID = struct.Struct("<6Q10I"), struct.Struct("<4Q2I"), struct.Struct("<QII")
_DIRENT = struct.Struct("<QQII")

_KNOWN_FOR: Final = 1  # seconds for which a guest need not ask again

# Flags of INIT: reads and directories side by side, truncation while opening, large writes, contents looked at again
# where a file has changed, names with attributes, requests of more than 32 pages.
WANTED_FLAGS: Final = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15 | 1 << 18 | 1 << 22

BY_HANDLE: Final = 1  # in GETATTR
DATA_ONLY: Final = 1  # in FSYNC


class Set(IntEnum):
    """What SETATTR sets."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    HANDLE = 1 << 6
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8


def attributes(st: os.stat_result, owner: int) -> bytes:
    """What is known of a file; `owner` is whose the guest is told it is."""
    whole = [*(divmod(moment, 1_000_000_000) for moment in (st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns))]
    seconds, parts = zip(*whole, strict=True)
    return _ATTR.pack(
        *(st.st_ino, st.st_size, st.st_blocks, *(second & 0xFFFFFFFFFFFFFFFF for second in seconds), *parts),
        *(st.st_mode, st.st_nlink, owner, st.st_gid, 0, st.st_blksize, 0),
    )


def attributes_answer(known: bytes) -> bytes:
    return _VALID.pack(_KNOWN_FOR, 0, 0) + known


def entry(node: int, known: bytes) -> bytes:
    """A name that was found."""
    return _ENTRY.pack(node, 0, _KNOWN_FOR, _KNOWN_FOR, 0, 0) + known


NO_ENTRY: Final = bytes(_ENTRY.size + _ATTR.size)


def dirent(name: bytes, ino: int, kind: int, following: int) -> bytes:
    """A name in a directory; the next one begins at a multiple of eight."""
    said = _DIRENT.pack(ino, following, len(name), kind >> 12) + name
    return said + bytes(-len(said) % 8)


def names(data: bytes, count: int) -> list[bytes]:
    """Names at the end of a request, each with a zero behind it."""
    words = data.split(b"\0")
    if len(words) != count + 1 or words[-1]:
        raise ValueError("names without their ends")
    return words[:-1]


def kind_of(mode: int) -> int:
    return stat.S_IFMT(mode)
