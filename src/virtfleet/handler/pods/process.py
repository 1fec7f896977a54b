"""Processes of a launcher's Pod, held so that nothing is ever done to another one in their place.

A number says little: the process may have ended and its number gone to any other, and who listens on a socket in a
Pod's volume chose by itself which process that is. So a process is held by file descriptors, which never come to mean
another one, and it has to be in the control group of the Pod, which only the node's own programs can put it into.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from virtfleet.handler.pods.cgroups import ControlGroup
from virtfleet.kube import confined
from virtfleet.kube.confined import closing

_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77
_CONTEXT = re.compile(r"[^\s:]+:[^\s:]+:[^\s:]+:s\d+(:[c\d.,]+)?\Z")
_NO_CONTEXT = "none"  # as KubeVirt says it
_LONGEST = 4 << 20  # the kernel lets nobody have a larger environment


def belongs(groups: str, pod: str) -> bool:
    """Whether a process with these lines in /proc/<pid>/cgroup is one of the Pod.

    The kubelet names a Pod's group `pod<uid>`, for systemd `<class>-pod<uid>.slice` with underscores; the local
    cluster names it by the UID alone.
    """
    names, slice_name = {pod, f"pod{pod}"}, f"-pod{pod.replace('-', '_')}.slice"
    parts = {part for line in groups.splitlines() for part in line.split(":", 2)[-1].split("/")}
    return bool(pod) and any(part in names or part.endswith(slice_name) for part in parts)


class PodProcess:
    """One process. Its descriptors are closed when nobody refers to it any more: whoever still does is safe."""

    def __init__(self, number: int, pod: str, pidfd: int | None = None) -> None:
        """Raises ProcessLookupError where the process has ended, and PermissionError where it is not of the Pod."""
        self.pod = pod
        self._number = number
        self._pidfd = os.pidfd_open(number) if pidfd is None else pidfd
        weakref.finalize(self, os.close, self._pidfd)
        try:
            self._proc = os.open(f"/proc/{number}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ProcessLookupError(f"process {number} has ended") from None
        weakref.finalize(self, os.close, self._proc)
        groups = self.read("cgroup").decode()
        _ = self.number  # it lived after /proc was opened, so that is not a later process's
        if not belongs(groups, pod):
            raise PermissionError(f"process {number} is not one of Pod {pod}: nothing is done to it")

    @classmethod
    def at(cls, connection: socket.socket, pod: str) -> PodProcess:
        """The process that listens at the other end, as the kernel tells it."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        number: int = _CREDENTIALS.unpack(credentials)[0]
        try:
            pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except ProcessLookupError:
            raise
        except OSError:  # before Linux 6.5; whoever has the number now has to be of the Pod as well
            return cls(number, pod)
        return cls(number, pod, pidfd)

    @property
    def number(self) -> int:
        """Its number, for calls that know nothing better; the process lives at this moment."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(0):
            raise ProcessLookupError(f"process {self._number} has ended")
        return self._number

    async def ended(self) -> None:
        """Wait for its end. One may do so at a time."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            loop.remove_reader(self._pidfd)

    def selinux_context(self) -> str:
        """By which SELinux tells it from others; `none` where another module of the kernel says what it may do."""
        with suppress(OSError):
            context = self.read("attr/current").rstrip(b"\0\n").decode(errors="replace")
            return context if _CONTEXT.match(context) else _NO_CONTEXT
        return _NO_CONTEXT

    def read(self, name: str) -> bytes:
        """A file about it in /proc."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        with open(fd, "rb") as file:
            return file.read(_LONGEST)

    def threads(self) -> dict[int, str]:
        """Names of its threads, by their numbers."""
        names = {}
        with closing(os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)) as directory:
            for number in os.listdir(directory):
                with suppress(FileNotFoundError, ProcessLookupError):
                    names[int(number)] = self.read(f"task/{number}/comm").decode(errors="replace").strip()
        return names

    def thread(self, number: int) -> int:
        """The number of a thread, which is one of this process and lives at this moment."""
        os.stat(f"task/{number}", dir_fd=self._proc)
        return number

    def group(self) -> ControlGroup:
        return ControlGroup(self.read("cgroup").decode())

    def companions(self) -> Iterator[PodProcess]:
        """All processes of its control group."""
        for number in self.group().processes():
            with suppress(OSError):
                yield PodProcess(number, self.pod)

    @contextmanager
    def namespace(self, kind: str) -> Iterator[int]:
        """A descriptor of its namespace. The node's own is none of a Pod's."""
        with closing(os.open(f"ns/{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)) as fd:
            if _is_of(fd, kind, "self") or _is_of(fd, kind, "1"):
                raise PermissionError(f"Pod {self.pod} has the {kind} namespace of the node: nothing is done in it")
            yield fd

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """What is at a path of its own file system; no link leads out of that."""
        with closing(os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)) as root:
            opened = confined.open_at(root, path, flags, confined.INSIDE)
        with closing(opened):
            yield opened

    def has(self, path: str) -> bool:
        """Whether there is something at a path of its own file system."""
        with suppress(FileNotFoundError), self.opened(path, os.O_PATH):
            return True
        return False


def path_of(descriptor: int) -> str:
    """A path of what is open here, for other programs, as long as it is."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def of_pod(pod: str, names: tuple[str, ...]) -> list[PodProcess]:
    """All processes of a Pod whose names begin with one of these, whatever has become of its launcher."""
    processes = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if Path("/proc", entry, "comm").read_text(errors="replace").startswith(names):
                processes.append(PodProcess(int(entry), pod))
    return processes


def _is_of(namespace: int, kind: str, process: str) -> bool:
    """Whether a namespace is that of a process; of one that may not be looked at, it is not known."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(namespace), os.stat(f"/proc/{process}/ns/{kind}"))
    return False
