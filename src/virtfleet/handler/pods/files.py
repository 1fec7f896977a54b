"""What lies in the directories of a Pod, reached without trusting the Pod.

Who runs in a Pod can put anything into its volumes: a link under the name of a file or socket would lead the handler,
which is root on the node, to something of another Pod or of the node. So the kernel is told to follow nothing below a
volume's own directory: no link, and no mount. This is the only module that opens anything there, and it only ever
reads and connects: what a launcher needs in its directories, it is told and writes itself.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from virtfleet.kube import confined
from virtfleet.work import sockets

VOLUMES = "volumes/kubernetes.io~empty-dir"
_LAST_WORDS = "containers/compute"
_LONGEST_WORDS = 1 << 16
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,62}")
_REASONS = {errno.ELOOP: "it is or goes through a link", errno.EXDEV: "it leads out of the volume"}


def is_uid(text: str) -> bool:
    """Whether this can be the UID of a Pod, which names directories and files of the node."""
    return _UID.fullmatch(text) is not None


def connect(pod: Path, volume: str, *names: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A connection to the socket under `names` in a volume of a Pod. It never waits: who does not take it is away.

    Raises FileNotFoundError where there is none, ConnectionRefusedError where nobody listens, and another OSError where
    something else is in its place.
    """
    with _opened(pod / VOLUMES / volume, "/".join(names), os.O_PATH) as place:
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise PermissionError(errno.EPERM, "it is not a socket", str(pod.joinpath(VOLUMES, volume, *names)))
        connection = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        with sockets.kept(connection):
            connection.connect(f"/proc/self/fd/{place}")
        return connection


def last_words(pod: Path) -> Iterator[bytes]:
    """What the runs of a launcher left for the kubelet, as far as it is short enough to be of use."""
    with suppress(OSError), _opened(pod, _LAST_WORDS, os.O_RDONLY | os.O_DIRECTORY) as directory:
        for name in os.listdir(directory):
            with suppress(OSError), _opened(pod, f"{_LAST_WORDS}/{name}", confined.READ) as file:
                yield confined.read_file(file, _LONGEST_WORDS)


@contextmanager
def _opened(root: Path, path: str, flags: int) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(confined.opened(root, path, flags, resolve=confined.NO_LINKS_NOR_MOUNTS))
        except OSError as error:
            if error.errno not in _REASONS:
                raise
            raise PermissionError(errno.EPERM, _REASONS[error.errno], f"{root}/{path}") from None
        yield fd
