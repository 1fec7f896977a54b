"""What an importer is told to do, by whoever makes its Pod: one job, as JSON in its argument.

An importer fills one claim with one disk and ends. It talks to nobody: how it went is its exit code and its last words.
Only one that waits for an upload is talked to, by virt-api, in pieces with their length before them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

# Where its Pod has what.
_ROOT: Final = "/var/run/virtfleet-import"
TARGET: Final = f"{_ROOT}/target"
TARGET_DEVICE: Final = "/dev/virtfleet-import-target"
SOURCE: Final = f"{_ROOT}/source"
SOURCE_DEVICE: Final = "/dev/virtfleet-import-source"
IMAGE: Final = f"{_ROOT}/image"
SCRATCH: Final = f"{_ROOT}/scratch"
CREDENTIALS: Final = f"{_ROOT}/credentials"
AUTHORITIES: Final = f"{_ROOT}/authorities"
HEADERS: Final = f"{_ROOT}/headers"

HOPELESS: Final = 3
"""The exit code that says that another attempt would end the same way."""
PORT: Final = 8444
"""Where uploads come in."""
MOST_AT_ONCE: Final = 1 << 20
"""Bytes of one piece of an upload; a piece of none is the end."""


class Source(StrEnum):
    """Where a disk comes from, in the words of the API."""

    BLANK = "blank"
    HTTP = "http"
    REGISTRY = "registry"
    CLAIM = "pvc"
    UPLOAD = "upload"


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that an importer has to know."""

    source: Source
    size: int
    """Bytes that the disk is to have; a larger one is refused."""
    block: bool = False
    """Whether the claim is a block device."""
    source_block: bool = False
    """The same of the claim that is copied."""
    url: str = ""
    headers: tuple[str, ...] = ()
    checksum: str = ""
    """Of what is downloaded: an algorithm, a colon, a number in hexadecimal digits."""
    preallocate: bool = False
    """Whether all of the disk is to have its place at once."""
    clients: str = ""
    """The authority (PEM) that vouches for virt-api."""
    client: str = ""
    """The name that virt-api's certificate has."""


def scratch(size: int) -> int:
    """Bytes that an image for a disk of a size may have in another form than the disk's."""
    return size + size // 8 + (64 << 20)
