"""A process in the control group of a Pod, as a node's programs would have put it there.

Launchers of tests live in the test's own process. The kernel takes for a socket's owner whoever called listen() last;
so a process of the Pod does that for them, and is what a handler finds at the other end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import eventually
from virtfleet.handler.pods.process import PodProcess

GROUPS = Path("/sys/fs/cgroup")
_SET_DEATH_SIGNAL, _NEW_NETWORK = 1, 0x40000000


def hierarchy() -> Path:
    """One in which groups can be made: of version 1 or 2."""
    if os.geteuid() != 0:
        pytest.skip("control groups need root")
    return next(path for path in (GROUPS / "pids", GROUPS) if (path / "cgroup.procs").exists())


class PodGroup:
    """The control group of a Pod."""

    def __init__(self, pod: str) -> None:
        self._outer = hierarchy() / f"vft-{os.getpid()}-{os.urandom(4).hex()}"
        self._group = self._outer / pod
        self._group.mkdir(parents=True)

    def add(self, number: int) -> None:
        (self._group / "cgroup.procs").write_text(str(number))

    def add_tree(self, number: int) -> None:
        """A process and its children; those that they start from now on are in it too."""
        self.add(number)
        for child in Path(f"/proc/{number}/task/{number}/children").read_text().split():
            self.add(int(child))

    def remove(self) -> None:
        """As soon as nobody is in it any more."""
        for group in (self._group, self._outer):
            eventually(lambda group=group: not (group / "cgroup.procs").read_text())
            group.rmdir()


class PodMember:
    """A process of the Pod, from the moment at which this is made until `end`. It may listen on a socket for others."""

    def __init__(self, pod: str, listener: int = -1, *, own_network: bool = False) -> None:
        self._group = PodGroup(pod)
        self._own_network = own_network
        ready, done = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            self._live(listener, done)
        os.close(done)
        assert os.read(ready, 1), "the process of the Pod did not come up"
        os.close(ready)

    def _live(self, listener: int, done: int) -> None:
        try:
            ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
            for number in set(range(3, 1 << 12)) - {listener, done}:  # others must be closed when the test closes them
                with suppress(OSError):
                    os.close(number)
            self._group.add(os.getpid())
            if self._own_network and ctypes.CDLL(None).unshare(_NEW_NETWORK):
                return
            if listener >= 0:
                socket.socket(fileno=listener).listen(100)
            os.write(done, b"1")
            self.work()
        finally:
            os._exit(1)

    def work(self) -> None:
        """What it does until it is killed."""
        signal.pause()

    def end(self) -> None:
        if self.number:
            os.kill(self.number, signal.SIGKILL)
            os.waitpid(self.number, 0)
            self.number = 0
            self._group.remove()


# A container as runtimes make one: mounts of its own, and another root.
_CONTAINER = """
import ctypes, os, sys
root, volume, place = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def must(result): assert result == 0, os.strerror(ctypes.get_errno())
must(libc.unshare(0x20000))
must(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
must(libc.mount(root.encode(), root.encode(), None, 0x1000, None))
if volume:
    must(libc.mount(volume.encode(), (root + place).encode(), None, 0x1000, None))
os.chroot(root)
os.chdir("/")
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def container(root: Path, pod: str, volume: Path | None = None, at: str = "") -> Iterator[PodProcess]:
    (root / at.lstrip("/")).mkdir(parents=True, exist_ok=True)
    group = PodGroup(pod)
    command = [sys.executable, "-c", _CONTAINER, str(root), str(volume or ""), at]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        group.add(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield PodProcess(process.pid, pod)
        process.kill()
    group.remove()
