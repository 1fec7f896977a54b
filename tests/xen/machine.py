"""The emulated machine that a real Xen runs on, and the shell of its dom0.

Tests talk to that shell on the serial console. Directories of this machine are there at their own paths, read-only.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xen.dom0 import Dom0

TREE = Path(__file__).resolve().parents[2]
LIMIT = 840.0  # seconds for whatever takes long
DOMAINS = "xl list | tail -n +3"  # beside dom0
_MEMORY = 2560
_DOM0_MEMORY = 1536
# What is taken away QEMU's software has only halfway, and Xen or its dom0 die of it. AMD's extensions are emulated as
# well: HVM and PVH run by them.
_CPU = "max,-smap,-smep,-monitor,-la57,-pku,-pks,-rdtscp,+svm"
# Xen must not leave floating-point registers for later: as emulated, a guest's get into processes of dom0, which die.
_XEN = "loglvl=warning spec-ctrl=eager-fpu"
_BOOT = 600.0
_PROMPT = "dom0 is up"


class Shell:
    """The dom0's shell, on its serial console."""

    def __init__(self, connection: socket.socket, log: Path) -> None:
        self._connection = connection
        self._log = open(log, "wb")  # noqa: SIM115 (lives as long as the machine)
        self._read = b""
        self._number = 0

    def run(self, command: str, limit: float = 120.0) -> str:
        """What a command says; an error with it where the command fails."""
        status, said = self.attempt(command, limit)
        assert status == 0, f"{command}\nended with status {status} and said\n{said}"
        return said

    def attempt(self, command: str, limit: float = 120.0) -> tuple[int, str]:
        """How a command ends, and what it says."""
        self._number += 1
        mark = f"<{self._number}>"
        # The marks are put together there, so that an echo of the command is not taken for them.
        begin, end = f"printf '%s\\n' '<'{self._number}'>'", f"printf '%s %s\\n' '<'{self._number}'>' $?"
        self._connection.sendall(f"{begin}; {{ {command}\n}} </dev/null 2>&1; {end}\n".encode())
        self.wait(rf"{mark}\r?\n", limit)
        said = self.wait(rf"{mark} (\d+)\r?\n", limit)
        return int(said[1]), said.string[: said.start()].replace("\r", "")

    def wait(self, pattern: str, limit: float) -> re.Match[str]:
        """Read until the console says something."""
        deadline = time.monotonic() + limit
        while not (found := re.search(pattern, self._read.decode(errors="replace"))):
            self._connection.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                data = b""
            if not data:
                raise AssertionError(f"{pattern!r} did not come within {limit} s; last:\n{self._tail()}")
            self._log.write(data)
            self._log.flush()
            self._read += data
        rest = self._read.decode(errors="replace")[found.end() :]
        self._read = rest.encode()
        return found

    def _tail(self) -> str:
        return self._read.decode(errors="replace")[-3000:]


@contextmanager
def booted(dom0: Dom0, directory: Path, *shared: Path, tap: str = "") -> Iterator[Shell]:
    """A running dom0. It sees the shared directories at their own paths; its console is logged into `directory`.

    `tap` is an interface of this machine whose other end is the dom0's eth0.
    """
    path = directory / "console"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    places = ":".join(map(str, shared))
    command = [
        *("qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg", "-cpu", _CPU, "-m", str(_MEMORY)),
        *("-chardev", f"socket,id=console,path={path}", "-serial", "chardev:console"),
        *("-drive", f"file={dom0.disk},format=raw,if=virtio,snapshot=on"),
        *(word for number, path in enumerate(shared) for word in _share(number, path)),
        *(("-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no") if tap else ()),
        *(("-device", "virtio-net-pci,netdev=net") if tap else ()),
        *("-kernel", str(dom0.xen)),
        *("-append", f"console=com1 com1=115200,8n1 dom0_mem={_DOM0_MEMORY}M,max:{_DOM0_MEMORY}M {_XEN}"),
        *("-initrd", f"{dom0.kernel} console=hvc0 quiet mitigations=off virtfleet.shared={places},{dom0.initrd}"),
    ]
    machine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        listener.settimeout(30)
        connection, _ = listener.accept()
        shell = Shell(connection, directory / "log")
        shell.wait(_PROMPT, _BOOT)
        yield shell
    finally:
        machine.kill()
        machine.wait()
        listener.close()


def _share(number: int, path: Path) -> list[str]:
    device = f"virtio-9p-pci,fsdev=shared{number},mount_tag=shared{number}"
    return ["-fsdev", f"local,id=shared{number},path={path},security_model=none,readonly=on", "-device", device]
