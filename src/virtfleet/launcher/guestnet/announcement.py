"""A guest behind its Pod's address has come: a word to the Pod's routers tells the network where that address is now.

A guest that has the Pod's place itself is announced by its hypervisor.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DISCARD = 9  # the port of which nobody expects an answer


def announce() -> None:
    """Say something to each router of the Pod, which an unprivileged process may; the kernel looks for them first."""
    with suppress(OSError):
        for router in routers(Path("/proc/net/route").read_text()):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker, suppress(OSError):
                speaker.setblocking(False)
                speaker.sendto(b"", (router, _DISCARD))


def routers(table: str) -> Iterator[str]:
    """The gateways of the default routes in the kernel's own table."""
    for line in table.splitlines()[1:]:
        _, destination, gateway, *_ = line.split()
        if int(destination, 16) == 0 and int(gateway, 16):
            yield socket.inet_ntoa(struct.pack("<I", int(gateway, 16)))
