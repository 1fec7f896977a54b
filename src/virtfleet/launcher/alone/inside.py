"""The inside of a sandbox: mounts what has to be private and becomes the launcher.

`python -m virtfleet.launcher.alone.inside DIRECTORY USER DEVICES ARGUMENTS...`, in namespaces that are its own already.
It is gone before anything of the VM happens, so it imports next to nothing: its start is part of every `virtfleet
launch`.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from virtfleet.domain.paths import PRIVATE, USER
from virtfleet.launcher.libvirtd import cgroups

# What libvirt's system mode uses of a machine.
_SYSTEM_DIRS = ("/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")
BOUND = "VIRTFLEET_BOUND"
"""Variable: files that are open here, each with the place where it is to be seen."""


def enclose(directory: Path, user: int, wanted: Sequence[str]) -> None:
    """Mount what must be private. The mount namespace is ours already."""
    if user == 0:
        cgroups.join(directory.name)
    _bind(directory / "run", "/run")
    for path in _SYSTEM_DIRS if user == 0 else ():
        if os.path.isdir(path):
            private = directory / path.replace("/", "-")
            private.mkdir()
            _bind(private, path)
    hostname = os.uname().nodename
    for name, line in (
        ("passwd", f"qemu:x:{USER}:{USER}:qemu:/:/bin/sh"),
        ("group", f"qemu:x:{USER}:"),
        ("hosts", f"127.0.1.1\t{hostname}"),
    ):
        file, known = directory / name, Path("/etc", name).read_text().splitlines()
        others = [account for account in known if account.split(":")[2:3] != [str(USER)]]
        file.write_text("\n".join([*others, line, ""]))
        _bind(file, f"/etc/{name}")
    devices = directory / "devices"
    devices.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "none", str(devices))
    for name in wanted:
        with suppress(FileNotFoundError):
            number = os.stat(f"/dev/{name}").st_rdev
            node = devices / name.replace("/", "-")
            os.mknod(node, stat.S_IFCHR | 0o600, number)
            os.chown(node, user, user)
            _bind(node, f"/dev/{name}")
    for opened, _, place in (item.partition(":") for item in os.environ.pop(BOUND, "").split()):
        Path(place).touch()
        _bind(Path(f"/proc/{os.getpid()}/fd/{opened}"), place)
        os.close(int(opened))
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("67")


def _bind(source: Path, target: str) -> None:
    _mount("--bind", str(source), target)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=60)


def become_launcher(user: int, arguments: Sequence[str]) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.environ.update(HOME=PRIVATE, PATH="/usr/sbin:/usr/bin:/sbin:/bin")
    os.chdir("/")
    os.execv(sys.executable, [sys.executable, "-m", "virtfleet.launcher", *arguments])


if __name__ == "__main__":
    enclose(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","))
    become_launcher(int(sys.argv[2]), sys.argv[4:])
