"""`virt-launcher share --socket-path SOCKET --shared-dir DIRECTORY`: what runs beside the launcher for one file system.

It ends when the hypervisor does. A hypervisor that ends before a guest has used the file system is one that did not
start; another try follows.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from virtfleet.launcher.failure import leave_word
from virtfleet.launcher.sharing.device import Device
from virtfleet.launcher.sharing.queue import Broken
from virtfleet.launcher.sharing.service import Service
from virtfleet.launcher.sharing.tree import MOST, Tree

logger = logging.getLogger(__name__)

_SPARE = 128  # descriptors for all but the guest's files


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="virt-launcher share", description="Shares a directory with a guest.")
    parser.add_argument("--socket-path", required=True, help="where the hypervisor connects to")
    parser.add_argument("--shared-dir", required=True, help="what the guest sees")
    parser.add_argument("--as-root", action="store_true", help="tell the guest that root owns this user's files")
    return parser.parse_args(arguments)


def listening(path: str) -> socket.socket:
    """A socket at a path, which may have been anything before."""
    listener = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener.bind(path)
    listener.listen(1)
    return listener


def most_files() -> int:
    """How many files this process can hold for its guest: half of them known, half of them open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST + _SPARE if hard == resource.RLIM_INFINITY else min(hard, 2 * MOST + _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, (wanted - _SPARE) // 2)


def share(listener: socket.socket, service: Service) -> None:
    """Serve one hypervisor after the other, until one has had a guest, or has nothing to say."""
    while True:
        connection, _ = listener.accept()
        with connection:
            if not connection.recv(1, socket.MSG_PEEK):
                logger.info("the launcher has ended without a guest")
                return
            device = Device(connection, service.answer)
            device.serve()
        if device.used:
            logger.info("the hypervisor has ended")
            return


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    wanted = options(sys.argv[2:])
    os.umask(0)  # the guest has applied its own
    try:
        service = Service(Tree(wanted.shared_dir, most=most_files()), as_root=wanted.as_root)
        listener = listening(wanted.socket_path)
        logger.info("%s is shared at %s", wanted.shared_dir, wanted.socket_path)
        share(listener, service)
    except (OSError, Broken) as error:
        logger.error("%s", error)
        leave_word(str(error))
        sys.exit(1)
