"""A socket for router advertisements, from somebody who may open one to the launcher, which may not.

Such sockets are for root alone, and the launcher is an ordinary user; so whoever sets up the Pod's network opens it and
hands it over, once. The address that it is handed over at belongs to the Pod's network namespace. Standard library
only: a short-lived process does this for each VM.
"""

from __future__ import annotations

import contextlib
import socket
import sys

ADDRESS = "\0virtfleet-router-sockets"


def hand_over(device: str) -> None:
    """Open the socket for a device of this network namespace, and give it to the launcher there.

    A launcher that does not take any is one of an earlier version; its guest has no default route by IPv6.
    """
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as raw,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel,
        contextlib.suppress(ConnectionRefusedError),
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        channel.connect(ADDRESS)
        socket.send_fds(channel, [device.encode()], [raw.fileno()])


if __name__ == "__main__":
    hand_over(sys.argv[1])
